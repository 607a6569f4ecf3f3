"""Any server that speaks OpenAI's chat completions: what it does right, and how fast.

target      a server: its name, its model, how it is asked
hearing     an exchange: what came, byte for byte, and when
rules       what a check is, and what all checks share
of_http, of_streams, of_answers, of_calls
            the checks, by what they are about
checking    all checks on all servers
load        many requests at once, one-token answers, a long prompt among streams
loading     the load on several servers in turns, and the tables made of it
"""
