"""Every example file, built without text: `BUILT` has a function for each."""

from collections.abc import Callable

import energyml as em


def antibodies(b: em.Builder) -> None:
    mlm = b.net("mlm", "transformers", "models/antiberty")
    Residue = b.labels("Residue", source=mlm)
    T = b.dim("T")
    y = b.output("y", Residue[T])
    b.masked(y, conditionals=mlm, energy="raw")
    b.infer("metropolis", block=em.schedule(4, 1), temperature=0.8, burn_in=7, sweeps=33, chains=5)
    b.decode("sample", 5)


def chunking(b: em.Builder) -> None:
    phrases = ["ADJP", "ADVP", "CONJP", "INTJ", "LST", "NP", "PP", "PRT", "SBAR", "UCP", "VP"]
    Char = b.labels("Char", source="data", unknown="<unk>")
    Word = b.labels("Word", source="data", min=2, unknown="<unk>")
    Pos = b.labels("Pos", source="data", unknown="<unk>")
    Chunk = b.labels("Chunk", ["O", *(f"{place}-{phrase}" for phrase in phrases for place in "BI")])
    T = b.dim("T")
    M = b.dim("M", within=T)
    char, word, pos = b.input("char", Char[T, M]), b.input("word", Word[T]), b.input("pos", Pos[T])
    y = b.output("y", Chunk[T])
    words = b.net(
        "words", "chars_words", out=Chunk, chars=50, char_layers=2, char_embed=10, pos=10, hidden=300, layers=2
    )
    W = b.param("W", em.real["from":Chunk, "to":Chunk], initial=em.choose("normal", 0.1))
    b.chain(y, unary=words(char, word, pos), pair=W)
    b.scheme(y, "bio")
    b.infer("exact")
    b.train(
        "marginal_ce",
        balance=em.choose("online", scale="y.unary", against="y.pair", grid=em.spread(2**-8, 2**8), subset=3000),
        optimizer=em.choose("adam", lr=1e-3),
        stop=em.choose("plateau", "f1", patience=3, reduce=1, threshold=1e-3),
        epochs=50,
    )
    b.data("conll", "conll2000/train.txt", columns="word pos y", validation=0.2, test="conll2000/test.txt")


def horses(b: em.Builder) -> None:
    Seg = b.labels("Seg", ["background", "horse"])
    H, W = b.dim("H"), b.dim("W")
    rgb = b.input("rgb", em.real[3, H, W])
    s = b.field("s", em.real[Seg, H, W])
    b.output("y", Seg[H, W], argmax=(s, Seg))
    scores = b.net("scores", "unet", out=Seg, channels=16)
    embed = b.net("embed", "unet", out=16, channels=16)
    b.gaussian(s, unary=scores(rgb), pair=em.potts(embed(rgb)), ridge=1.0)
    b.infer("exact")
    b.decode("mode")
    b.train(
        "marginal_ce",
        balance=em.choose("online", scale="s.unary", against="s.pair", grid=em.spread(2**-8, 2**8), subset=100),
        optimizer=em.choose("adam", lr=1e-3),
        stop=em.choose("plateau", "jaccard", patience=13, reduce=5, threshold=1e-3),
        epochs=200,
        batch=4,
    )
    b.data("images", "horses/rgb", "horses/figure_ground", size=64, validation=50, folds=5)


def ising(b: em.Builder) -> None:
    Spin = b.labels("Spin", ("down", "up"))
    H, W = b.dim("H", size=4), b.dim("W", size=4)
    outer = b.input("outer", em.real[H, W, Spin])
    y = b.output("y", Spin[H, W])
    coupling = b.param("coupling", em.real, initial=0.4)
    i, j = b.index("i"), b.index("j")
    b.factor("site", [i.over(H), j.over(W)], [y[i, j]], outer[i, j])
    b.factor("down", [i.over(H - 1), j.over(W)], [y[i, j], y[i + 1, j]], em.potts(coupling))
    b.factor("right", [i.over(H), j.over(W - 1)], [y[i, j], y[i, j + 1]], em.potts(coupling))
    b.infer("auto")
    b.decode("marginal_argmax")
    b.train("nll", optimizer=em.choose("adam", lr=1e-2), epochs=50)


def ocr(b: em.Builder) -> None:
    Letter = b.labels("Letter", "abcdefghijklmnopqrstuvwxyz")
    T = b.dim("T")
    image = b.input("image", em.real[T, 1, 16, 8])
    y = b.output("y", Letter[T])
    cnn = b.net("cnn", "lenet5", out=Letter)
    W = b.param("W", em.real["from":Letter, "to":Letter], initial=em.choose("normal", 0.1))
    b.chain(y, unary=cnn(image), pair=W)
    b.infer("exact")
    b.train(
        "marginal_ce",
        balance=em.choose("online", scale="y.unary", against="y.pair", grid=em.spread(2**-8, 2**8), subset=2000),
        optimizer=em.choose("adam", lr=1e-3),
        stop=em.choose("plateau", "averaged_accuracy", patience=7, reduce=3, threshold=1e-3),
        epochs=200,
    )
    b.data("letters", "letter.data", fold=0)


def phonemes(b: em.Builder) -> None:
    sounds = "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH"
    Phoneme = b.labels("Phoneme", sounds.split())
    N = b.dim("N")
    y = b.output("y", Phoneme[N])
    neighbours = b.net("neighbours", "masked_blstm", hidden=100, embed=50)
    b.masked(y, conditionals=neighbours, energy="raw")
    b.infer("metropolis", sweeps=1000, chains=5)
    b.decode("sample", 5)
    b.train(
        "pseudo_likelihood",
        optimizer=em.choose("adam", lr=1e-3),
        stop=em.choose("plateau", "loss", patience=7),
        epochs=100,
        batch=64,
    )
    b.data("lines", "cmudict/phonemes.txt")


def seq2seq_tagger(b: em.Builder) -> None:
    Word = b.labels("Word", source="data", min=2, unknown="<unk>")
    entities = ["B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
    Entity = b.labels("Entity", ["O", *entities])
    T = b.dim("T")
    word = b.input("word", Word[T])
    y = b.output("y", Entity[T])
    encoder = b.net("encoder", "blstm", hidden=64, embed=100)
    decoder = b.net("decoder", "lstm_decoder", hidden=128, embed=32, attention="aligned")
    b.sequence(y, step=decoder, given=encoder(word), normalize="local")
    b.infer("beam", width=3)
    b.decode("map")
    b.train("teacher_forcing", epochs=5, optimizer=em.choose("adam", lr=1e-3))
    b.train(
        "direct_loss",
        infer=em.choose("relaxed_beam", width=3, alpha=em.schedule(1, 5)),
        cost=em.choose("hamming", {"O": 2}),
        optimizer=em.choose("adam", lr=1e-4),
        stop=em.choose("plateau", "f1", patience=3),
    )
    b.data("conll", "ner/eng.train", columns="word y")


def shapes(b: em.Builder) -> None:
    Seg = b.labels("Seg", ["background", "disc", "bar"])
    H, W = b.dim("H"), b.dim("W")
    rgb = b.input("rgb", em.real[H, W, 3])
    s = b.field("s", em.real[H, W, Seg])
    b.output("y", Seg[H, W], argmax=(s, Seg))
    pixel = b.net("pixel", "mlp", out=Seg, hidden=32)
    w = b.param("w", em.real, initial=1.0)
    b.gaussian(s, unary=pixel(rgb), pair=em.potential("smooth", w), ridge=0.1)
    b.infer("exact")
    b.decode("mode")
    b.train("marginal_ce", optimizer=em.choose("adam", lr=1e-2), epochs=20, batch=16)
    b.data("jsonl", "shapes.jsonl", validation=16, test=16)


def skip_chain(b: em.Builder) -> None:
    Word = b.labels("Word", source="data", min=2, unknown="<unk>")
    Tag = b.labels("Tag", "OBI")
    T = b.dim("T")
    word = b.input("word", Word[T])
    y = b.output("y", Tag[T])
    scores = b.net("scores", "blstm", out=Tag, hidden=50)
    W = b.param("W", em.real["from":Tag, "to":Tag], initial=em.choose("normal", 0.1))
    V = b.param("V", em.real["from":Tag, "to":Tag], initial=em.choose("normal", 0.1))
    t = b.index("t")
    b.factor("unary", [t.over(T)], [y[t]], scores(word)[t])
    b.factor("pair", [t.over(T - 1)], [("from", y[t]), ("to", y[t + 1])], W)
    b.factor("skip", [t.over(T - 2)], [("from", y[t]), ("to", y[t + 2])], V)
    b.forbid([t.over(T - 1)], y[t] == "O", y[t + 1] == "I")
    b.forbid([], y[0] == "I")
    b.infer("auto")
    b.decode("map")
    b.train("nll", optimizer=em.choose("adam", lr=1e-3), epochs=20)
    b.data("conll", "chunks.txt", columns="word y")


def spen(b: em.Builder) -> None:
    Word = b.labels("Word", source="data", min=2, unknown="<unk>")
    Tag = b.labels("Tag", source="data")
    T = b.dim("T")
    word = b.input("word", Word[T])
    y = b.output("y", Tag[T])
    scores = b.net("scores", "blstm", out=Tag, hidden=100)
    whole = b.net("whole", "pooled", hidden=50)
    W = b.param("W", em.real["from":Tag, "to":Tag], initial=em.choose("normal", 0.1))
    b.chain(y, unary=scores(word), pair=W)
    b.score("tail", [y], whole(em.soft(y)))
    b.infer("relaxed", steps=10, lr=0.5, momentum=0, optimizer="exponentiated", entropy=1)
    b.decode("map")
    b.train("direct_loss", optimizer=em.choose("adam", lr=1e-3), epochs=30, batch=10)
    b.data("conll", "pos/train.txt", columns="word y")


def tagger(b: em.Builder) -> None:
    Word = b.labels("Word", source="data", min=2, unknown="<unk>")
    Tag = b.labels("Tag", source="data")
    T = b.dim("T")
    word = b.input("word", Word[T])
    y = b.output("y", Tag[T])
    scores = b.net("scores", "blstm", out=Tag, hidden=100, embed=100)
    W = b.param("W", em.real["from":Tag, "to":Tag], initial=em.choose("normal", 0.1))
    t = b.index("t")
    b.factor("unary", [t.over(T)], [y[t]], scores(word)[t])
    b.factor("pair", [t.over(T - 1)], [("from", y[t]), ("to", y[t + 1])], W)
    b.infer("exact")
    b.decode("map")
    b.train(
        "nll",
        optimizer=em.choose("sgd", lr=0.1, momentum=0.9),
        stop=em.choose("plateau", "accuracy", patience=7),
        epochs=100,
        batch=10,
        reduction="example",
    )
    b.data(
        "conll",
        "twitter_pos/oct27.train",
        columns="word y",
        validation="twitter_pos/oct27.dev",
        test="twitter_pos/oct27.test",
    )


def translation(b: em.Builder) -> None:
    Source = b.labels("Source", source="data", min=2, unknown="<unk>")
    Target = b.labels("Target", source="data", min=2, unknown="<unk>", end="</s>")
    S, T = b.dim("S"), b.dim("T", at_most=60)
    source = b.input("source", Source[S])
    y = b.output("y", Target[T])
    encoder = b.net("encoder", "blstm", hidden=192, embed=192)
    decoder = b.net("decoder", "lstm_decoder", hidden=192, embed=192, attention="bahdanau")
    b.sequence(y, step=decoder, given=encoder(source), normalize="local", end="</s>")
    b.infer("beam", width=3)
    b.decode("map")
    b.train("self_normalized", weight=0.1, epochs=15, optimizer=em.choose("adam", lr=1e-3), clip=5)
    b.train(
        "direct_loss",
        infer=em.choose("relaxed_beam", width=3, alpha=em.schedule(1, 5)),
        epochs=5,
        optimizer=em.choose("adam", lr=1e-4),
        stop=em.choose("plateau", "bleu", patience=3),
    )
    b.data("pairs", "multi30k/train.de", "multi30k/train.en", longest=50)


def translation_subwords(b: em.Builder) -> None:
    Source = b.labels("Source", source="data", subwords=4000, unknown="<unk>")
    Target = b.labels("Target", source="data", subwords=4000, unknown="<unk>", end="</s>")
    S, T = b.dim("S"), b.dim("T", at_most=100)
    source = b.input("source", Source[S])
    y = b.output("y", Target[T])
    encoder = b.net("encoder", "blstm", hidden=128, embed=128)
    decoder = b.net("decoder", "transformer_decoder", hidden=256, heads=4, layers=2)
    b.sequence(y, step=decoder, given=encoder(source), normalize="local", end="</s>")
    b.infer("beam", width=5, length_penalty=0.6)
    b.decode("map")
    b.train(
        "teacher_forcing",
        epochs=20,
        optimizer=em.choose("adam", lr=5e-4),
        clip=1,
        stop=em.choose("plateau", "bleu", patience=3),
    )
    b.data("pairs", "multi30k/train.de", "multi30k/train.en", longest=50, split="words")


def tree(b: em.Builder) -> None:
    Sentiment = b.labels("Sentiment", ["negative", "neutral", "positive"])
    N, E = b.dim("N"), b.dim("E")
    vector = b.input("vector", em.real[N, 50])
    link = b.edges("link", N, N, over=E)
    relation = b.input("relation", em.real[E, 10])
    y = b.output("y", Sentiment[N])
    node_scores = b.net("node_scores", "mlp", out=Sentiment, hidden=100, dropout=0.5)
    arc_scores = b.net("arc_scores", "linear", out=em.axes["parent":Sentiment, "child":Sentiment])
    n, e, i, j = b.index("n"), b.index("e"), b.index("i"), b.index("j")
    b.factor("node", [n.over(N)], [y[n]], node_scores(vector)[n])
    b.factor("arc", [link.edges(e, i, j)], [("parent", y[i]), ("child", y[j])], arc_scores(relation)[e])
    b.infer("auto")
    b.decode("marginal_argmax")
    b.train("nll", optimizer=em.choose("adam", lr=1e-3), stop=em.choose("plateau", "accuracy", patience=7))
    b.data("jsonl", "trees.jsonl")


BUILT: dict[str, Callable[[em.Builder], None]] = {
    make.__name__: make
    for make in (
        antibodies, chunking, horses, ising, ocr, phonemes, seq2seq_tagger, shapes, skip_chain, spen, tagger,
        translation, translation_subwords, tree,
    )
}  # fmt: skip
