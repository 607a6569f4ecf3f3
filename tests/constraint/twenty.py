"""Twenty things to ask of a real model, each with a few tools and the calls that answer it."""

from __future__ import annotations

from typing import Any, NamedTuple

STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))


def _one_of(*words: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


def _tool(name: str, description: str, optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [key for key in properties if key not in optional]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


_TOOLS = {
    tool["function"]["name"]: tool
    for tool in (
        _tool("get_weather", "The weather in a city now", city=STRING),
        _tool("get_forecast", "The weather in a city over the coming days", city=STRING, days=INTEGER),
        _tool("get_time", "The time of day in a city", city=STRING),
        _tool("set_timer", "Start a timer", minutes=INTEGER),
        _tool("set_alarm", "Set an alarm", time={"type": "string", "description": "as HH:MM"}),
        _tool("switch_light", "Switch the light of a room", room=STRING, state=_one_of("on", "off")),
        _tool("set_volume", "Set the volume of the speakers", percent=INTEGER),
        _tool("play_song", "Play a song", title=STRING, artist=STRING),
        _tool("add", "Add two numbers", a=NUMBER, b=NUMBER),
        _tool("multiply", "Multiply two numbers", a=NUMBER, b=NUMBER),
        _tool("square_root", "The square root of a number", value=NUMBER),
        _tool("translate", "Translate a text", text=STRING, language=_one_of("French", "German", "Spanish")),
        _tool("define", "Look a word up in the dictionary", word=STRING),
        _tool("search_web", "Search the web", query=STRING),
        _tool("send_mail", "Send an e-mail", to=STRING, subject=STRING, body=STRING),
        _tool("read_file", "Read a file", path=STRING),
        _tool("delete_file", "Delete a file", path=STRING),
        _tool("list_files", "List the files of a folder", folder=STRING),
        _tool("convert_currency", "Convert an amount of money", amount=NUMBER, source=STRING, target=STRING),
        _tool("get_stock_price", "The price of a share", symbol=STRING),
        _tool("book_table", "Book a table in a restaurant", restaurant=STRING, guests=INTEGER, time=STRING),
        _tool("roll_dice", "Roll dice", count=INTEGER, sides=INTEGER),
        _tool("set_reminder", "Remind the user of something", text=STRING, minutes=INTEGER),
        _tool("plot", "Draw a chart of numbers", values={"type": "array", "items": NUMBER},
              kind=_one_of("line", "bar", "pie")),
        _tool("create_event", "Put an event into the calendar", ("attendees", "place"), title=STRING,
              day={"type": "string", "format": "date"}, attendees={"type": "array", "items": STRING},
              place=STRING),
        _tool("order", "Order something in the shop", ("express",), express=BOOLEAN,
              item={"type": "object", "properties": {"name": STRING, "count": INTEGER},
                    "required": ["name", "count"]}),
        _tool("lock_door", "Lock or unlock a door", door=_one_of("front", "back", "garage"), locked=BOOLEAN),
    )
}  # fmt: skip


class Task(NamedTuple):
    """What is asked, the tools that are offered, and the calls that are expected, in this order."""

    question: str
    tools: list[dict[str, Any]]
    calls: list[tuple[str, dict[str, Any]]]


def _task(question: str, tools: str, *calls: tuple[str, dict[str, Any]]) -> Task:
    return Task(question, [_TOOLS[name] for name in tools.split()], list(calls))


TWENTY = [
    _task("What is the weather in Paris right now?", "get_weather get_time set_timer",
          ("get_weather", {"city": "Paris"})),
    _task("Send an e-mail to anna@example.com with the subject 'Lunch' and the text 'See you at noon.'",
          "send_mail set_reminder search_web create_event",
          ("send_mail", {"to": "anna@example.com", "subject": "Lunch", "body": "See you at noon."})),
    _task("Book a table for 4 at the restaurant Luigi's at 19:30.", "book_table create_event set_alarm",
          ("book_table", {"restaurant": "Luigi's", "guests": 4, "time": "19:30"})),
    _task("Switch off the light in the kitchen and in the hall.", "switch_light set_volume lock_door",
          ("switch_light", {"room": "kitchen", "state": "off"}),
          ("switch_light", {"room": "hall", "state": "off"})),
    _task("What is 17 times 23?", "add multiply square_root",
          ("multiply", {"a": 17, "b": 23})),
    _task("Add 1250 and 375.", "multiply add roll_dice get_time",
          ("add", {"a": 1250, "b": 375})),
    _task("Draw a line chart of the numbers 1, 4, 9 and 16.", "square_root add plot define",
          ("plot", {"values": [1, 4, 9, 16], "kind": "line"})),
    _task("Translate 'good morning' into German.", "define translate search_web",
          ("translate", {"text": "good morning", "language": "German"})),
    _task("Look up the word 'serendipity' in the dictionary.", "translate define search_web get_time",
          ("define", {"word": "serendipity"})),
    _task("Put the event 'Dentist' into my calendar for 2026-03-14, with Ann and Bob.",
          "set_alarm create_event list_files",
          ("create_event", {"title": "Dentist", "day": "2026-03-14", "attendees": ["Ann", "Bob"]})),
    _task("Delete the file old.log, please.", "list_files read_file delete_file send_mail",
          ("delete_file", {"path": "old.log"})),
    _task("Convert 250 USD to EUR.", "get_stock_price convert_currency multiply",
          ("convert_currency", {"amount": 250, "source": "USD", "target": "EUR"})),
    _task("How much is a share with the symbol AAPL?", "convert_currency get_stock_price search_web define",
          ("get_stock_price", {"symbol": "AAPL"})),
    _task("Roll 2 dice with 6 sides each, and start a timer for 5 minutes.", "add roll_dice set_timer",
          ("roll_dice", {"count": 2, "sides": 6}), ("set_timer", {"minutes": 5})),
    _task("Order 3 pieces of 'umbrella'.", "order search_web convert_currency get_stock_price",
          ("order", {"item": {"name": "umbrella", "count": 3}})),
    _task("Play the song 'Imagine' by John Lennon.", "search_web play_song set_volume",
          ("play_song", {"title": "Imagine", "artist": "John Lennon"})),
    _task("Lock the garage door.", "lock_door switch_light set_alarm get_weather",
          ("lock_door", {"door": "garage", "locked": True})),
    _task("Give me the weather forecast for Madrid for the next 5 days.",
          "get_weather get_forecast get_time",
          ("get_forecast", {"city": "Madrid", "days": 5})),
    _task("What is the weather in Rome, and what is the weather in Berlin?",
          "get_weather get_forecast get_time search_web",
          ("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Berlin"})),
    _task("Set an alarm for 07:30, and switch on the light in the bedroom.",
          "set_timer set_alarm switch_light set_volume set_reminder",
          ("set_alarm", {"time": "07:30"}), ("switch_light", {"room": "bedroom", "state": "on"})),
]  # fmt: skip
