"""One server over many machines: models on replicas of Ray Serve, behind the same HTTP application.

    client --> ingress: the application of `server.app` --handle--> replica: a model on this engine or that
                 reads requests, writes answers        <-events--    renders, generates, parses

`deployment` puts the two together, `affinity` says which replica a conversation goes to, `router` tells Ray.
"""
