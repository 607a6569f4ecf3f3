// llama.cpp's chat parser, asked line by line: the child process of llamacpp.py, which says how to build it.
//
// It takes the steps of llama-server: the parser is made from the chat template and the tools, a whole output is
// parsed once, a streamed one anew with every piece, and what the client gets are the differences.

#include "chat.h"
#include "log.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

using json = nlohmann::ordered_json;

// Whether the prompt ends within reasoning.
static bool opens_reasoning(const common_chat_params & params) {
    const std::string & tag = params.thinking_start_tag;
    std::string prompt = params.generation_prompt;
    prompt.erase(prompt.find_last_not_of(" \n") + 1);
    return !tag.empty() && prompt.size() >= tag.size() && prompt.compare(prompt.size() - tag.size(), tag.size(), tag) == 0;
}

static common_chat_parser_params parser_for(const json & request) {
    static std::map<std::string, common_chat_templates_ptr>  templates;
    static std::map<std::string, common_chat_parser_params> parsers;
    const std::string path   = request.at("template");
    const bool        inside = request.contains("inside") && request["inside"] == "reasoning";
    const json        tools  = request.contains("tools") && request["tools"].is_array() ? request["tools"] : json::array();
    const std::string key    = path + (inside ? "\n+" : "\n-") + tools.dump();
    if (auto known = parsers.find(key); known != parsers.end()) {
        return known->second;
    }
    if (!templates.count(path)) {
        std::ifstream     file(path);
        std::stringstream source;
        source << file.rdbuf();
        templates[path] = common_chat_templates_init(nullptr, source.str());
    }
    common_chat_templates_inputs inputs;
    common_chat_msg              user;
    user.role    = "user";
    user.content = "Use the tools.";
    inputs.messages            = { user };
    inputs.tools               = common_chat_tools_parse_oaicompat(common_json::parse(tools.dump()));
    inputs.parallel_tool_calls = true;
    inputs.reasoning_format    = COMMON_REASONING_FORMAT_DEEPSEEK;  // llama-server's default
    common_chat_params params;
    for (const bool thinking : { true, false, true }) {  // as the prompt was when the output was written
        inputs.enable_thinking = thinking;
        params                 = common_chat_templates_apply(templates[path].get(), inputs);
        if (opens_reasoning(params) == inside) {
            break;
        }
    }
    common_chat_parser_params parser(params);
    if (inside && !opens_reasoning(params)) {
        parser.generation_prompt += params.thinking_start_tag + "\n";
    } else if (!inside && opens_reasoning(params) && !params.thinking_end_tags.empty()) {
        parser.generation_prompt += params.thinking_end_tags.front();  // the model had stopped thinking before
    }
    parser.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    if (!params.parser.empty()) {
        parser.parser.load(params.parser);
    }
    if (parsers.size() > 200) {
        parsers.clear();
    }
    return parsers[key] = parser;
}

static json answer_to(const json & request) {
    const auto  parser = parser_for(request);
    std::string content, reasoning;
    json        calls = json::array();
    auto        take  = [&](const std::vector<common_chat_msg_diff> & diffs) {
        for (const auto & diff : diffs) {
            content += diff.content_delta;
            reasoning += diff.reasoning_content_delta;
            if (diff.tool_call_index != std::string::npos) {
                while (calls.size() <= diff.tool_call_index) {
                    calls.push_back({ { "name", "" }, { "arguments", "" } });
                }
                auto & call       = calls[diff.tool_call_index];
                call["name"]      = call["name"].get<std::string>() + diff.tool_call_delta.name;
                call["arguments"] = call["arguments"].get<std::string>() + diff.tool_call_delta.arguments;
            }
        }
    };
    common_chat_msg so_far;
    std::string     text;
    if (request.contains("chunks")) {
        for (const auto & piece : request["chunks"]) {
            text += piece.get<std::string>();
            auto next = common_chat_parse(text, true, parser);
            if (!next.empty()) {
                take(common_chat_msg_diff::compute_diffs(so_far, next));
                so_far = next;
            }
        }
    } else {
        text = request.at("text");
    }
    auto last = common_chat_parse(text, false, parser);
    take(common_chat_msg_diff::compute_diffs(so_far, last));
    return { { "id", request["id"] }, { "content", content }, { "reasoning", reasoning }, { "tool_calls", calls } };
}

int main() {
    common_log_set_verbosity_thold(-1);
    for (std::string line; std::getline(std::cin, line);) {
        json answer = { { "id", nullptr } };
        try {
            const auto request = json::parse(line);
            answer["id"]       = request.value("id", json());
            answer             = answer_to(request);
        } catch (const std::exception & error) {
            answer["error"] = error.what();
        }
        std::cout << answer.dump(-1, ' ', true, json::error_handler_t::replace) << std::endl;
    }
}
