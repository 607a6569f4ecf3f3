"""Words: real ones, invented ones and strings of letters, split into those for training and those held out.

A word is held out when a checksum of its lower-case form says so, whoever draws it and whatever for. Values
in training hold no such word, and values in evaluation hold no others (numbers and short codes excepted). So
a right call on an evaluation request was copied from the request, never remembered.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

_REAL = """
apple amber anchor ankle arrow autumn bacon badge bamboo banana barley barn basil basket beach beacon bean
bear berry bicycle birch bird biscuit blanket blossom boat bone book boot bottle boulder bowl branch brass
bread brick bridge broom brush bucket butter button cabin cable cactus cake camel camera candle canyon
carpet carrot castle cat cave cedar cello chain chair chalk cheese cherry chess chimney chisel circle citrus
clay clock cloud clover coal coast cobalt coffee coin comet compass copper coral cork cotton cradle crane
crater cream cricket crow crown crystal cup curtain cushion daisy dawn deer desert diamond dinner doctor
dolphin donkey door dove dragon drawer drum duck dune dust eagle ear earth echo egg elbow elm ember engine
fabric falcon farm feather fence fern ferry fiddle field fig finger fire fish flag flame flint flour flower
flute forest fork fountain fox frog frost fruit garden garlic gate giraffe glacier glass globe glove goat
gold goose grain grape grass gravel guitar hammer harbour harp hat hawk hazel heart hedge helmet herb heron
hill hinge honey hook horn horse island ivory ivy jacket jar jasmine jelly jewel juice kettle key kite
kitten knife ladder lake lamp lantern lark laurel lava leaf leather lemon lens lentil lily lime linen lion
lizard lobster lock lotus magnet mango maple marble market mask meadow melon metal milk mill mint mirror
moon moss mountain mouse mushroom music mustard nail needle nest nickel night noodle nutmeg oak oat ocean
olive onion orange orbit orchid organ otter oven owl oyster paddle palace palm panda paper parrot path peach
pear pebble pencil pepper piano pigeon pillow pine pipe planet plate plum pocket poem pond poppy potato
powder puddle pumpkin puzzle quartz quilt rabbit radio rain raven reed ribbon rice ring river road robin
rocket roof rope rose ruby saddle sage sail salad salmon salt sand sapphire scarf school scissors seal seed
shadow sheep shell shelf ship shirt shoe silk silver sky sleeve smoke snail snow soap sock soup spice spider
spoon spring spruce squirrel stamp star steam stone storm stove straw stream sugar summer swan table tea
temple tent thistle thorn thread thunder tiger timber toast tomato tower train tree trumpet tulip tunnel
turtle umbrella valley velvet vessel vine violet violin wagon walnut water wave wax wheat wheel whistle
willow window winter wolf wood wool yarn zebra blue green quiet loud early late bright dark heavy light
narrow broad gentle rough
"""
_NAMES = """
Ada Agnes Alan Alice Amir Ana Anders Anton Arthur Astrid Bela Bertha Bruno Carla Carmen Cecil Clara Conrad
Dana David Diego Dora Edgar Elena Elias Emil Erika Esther Eva Felix Fiona Frank Freya Gaston Greta Hanna
Harold Hector Helga Hugo Ida Igor Ingrid Iris Ivan Jana Jonas Julia Karim Karin Klara Lara Leon Lena Linus
Lorenzo Lucia Magnus Maria Marta Max Mila Milan Mona Nadia Nina Noah Nora Olaf Olga Oscar Otto Paula Pavel
Pedro Petra Quentin Rania Ravi Rita Robert Rosa Samir Sara Silvia Simon Sofia Stefan Tara Tessa Thomas
Tobias Ursula Vera Victor Viktor Wanda Walter Xenia Yara Yusuf Zoe Amsterdam Athens Bergen Berlin Bogota
Boston Bremen Cairo Cologne Dakar Delhi Dublin Geneva Genoa Hamburg Hanoi Havana Helsinki Istanbul Jakarta
Kyoto Lagos Lima Lisbon London Lyon Madrid Malmo Manila Marseille Milano Montreal Munich Nairobi Naples
Osaka Oslo Ottawa Paris Porto Prague Quito Riga Rome Rotterdam Salzburg Santiago Seoul Seville Sofia
Stockholm Sydney Tallinn Tokyo Toronto Turin Utrecht Valencia Vienna Warsaw York Zagreb Zurich
"""
_SCRIPTS = (
    "абвгдежзиклмнопрстуфхцчшыэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "áàâäãåçéèêëíîïñóôöøúùûüß",
    "日本語中文字山川水火木金土人口目手足空雨",
    "あいうえおかきくけこさしすせそたちつてと",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "가나다라마바사아자차카타파하",
)
_ONSETS = """
b c d f g h j k l m n p r s t v w y z bl br ch cl cr dr fl fr gl gr kl pl pr qu sh sk sl st th tr
"""
_VOWELS = """
a e i o u a e i o u ai au ea ee ei ie oa oo ou
"""
_CODAS = ["", "", "", "l", "m", "n", "r", "s", "t", "x", "k", "nd", "nt", "rk", "st"]

REAL = tuple(_REAL.split())
NAMES = tuple(dict.fromkeys(_NAMES.split()))
_SYLLABLES = (_ONSETS.split(), _VOWELS.split(), _CODAS)


def is_held_out(word: str) -> bool:
    """Whether values in training leave this word out. One word in eight is."""
    return zlib.crc32(word.casefold().encode()) % 8 == 0


class Lexicon:
    """Draws words, from one side of the split.

    `common`: words with tokens of their own. Training draws some values from them, evaluation none.
    """

    def __init__(self, rng: random.Random, held_out: bool, common: tuple[str, ...] = ()) -> None:
        self.rng = rng
        self._held_out = held_out
        self._common = common
        self._recent: list[str] = []

    def chance(self, share: float) -> bool:
        """Whether it happens now, if it does in this share of all cases."""
        return self.rng.random() < share

    def word(self) -> str:
        """A word in any case and, seldom, any script; now and then one of the last few again."""
        again = self._recent and self.chance(0.04)
        word = self.rng.choice(self._recent) if again else self._admitted(self._any)
        self._recent = [*self._recent[-5:], word]
        style = self.rng.random()
        return word.capitalize() if style < 0.2 else word.upper() if style < 0.22 else word

    def name(self) -> str:
        """What a person or a city may be called: one word or two, nearly always with capitals."""
        count = 2 if self.chance(0.15) else 1
        words = [self._name() for _ in range(count)]
        return " ".join(words if self.chance(0.9) else [word.lower() for word in words])

    def phrase(self, most: int) -> str:
        """One to `most` words, short phrases more often."""
        return " ".join(self.word() for _ in range(min(self.rng.randint(1, most), self.rng.randint(1, most))))

    def key(self) -> str:
        """A lower-case ASCII word, as names of parameters and fields are."""
        return self._admitted(lambda: self.rng.choice(REAL) if self.chance(0.4) else self._invented())

    def code(self) -> str:
        """Letters and digits, such as K42 or 7-x9."""
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        text = self.rng.choice(letters) + str(self.rng.randint(0, 999))
        return text if self.chance(0.6) else f"{text}-{self.rng.choice(letters)}{self.rng.randint(0, 99)}"

    def _name(self) -> str:
        return self._admitted(self._any_name)

    def _any_name(self) -> str:
        return self.rng.choice(NAMES) if self.chance(0.35) else self._any().capitalize()

    def _admitted(self, draw: Callable[[], str]) -> str:
        """Draw until a word is on this lexicon's side of the split."""
        while True:
            word = draw()
            if is_held_out(word) == self._held_out and not (self._held_out and word.lower() in self._common):
                return word

    def _any(self) -> str:
        """A word of any kind, from both sides of the split."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.2 and not self._held_out:
            return rng.choice(self._common)
        if kind < 0.45:
            return rng.choice(REAL)
        if kind < 0.85:
            return self._invented()
        if kind < 0.96:
            return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9)))
        return "".join(rng.choices(rng.choice(_SCRIPTS), k=rng.randint(2, 5)))

    def _invented(self) -> str:
        rng = self.rng
        count = rng.choice((1, 2, 2, 2, 3))
        return "".join(rng.choice(part) for _ in range(count) for part in _SYLLABLES)
