package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// megatronIndex is an index as Megatron writes it, of documents that are each a list of
// the sizes of its sequences.
func megatronIndex(code byte, width int, documents [][]int) []byte {
	b := append([]byte(megatronMagic), binary.LittleEndian.AppendUint64(nil, 1)...)
	b = append(b, code)
	sequences := slices.Concat(documents...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(sequences)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(documents)+1))
	for _, n := range sequences {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	at := 0
	for _, n := range sequences {
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
		at += n * width
	}
	border := 0
	for _, d := range append([][]int{nil}, documents...) {
		border += len(d)
		b = binary.LittleEndian.AppendUint64(b, uint64(border))
	}
	return b
}

// megatronDir writes a pair of files, whose token ids are 0, 1, 2 and so on, by their low
// bytes.
func megatronDir(t testing.TB, name string, code byte, documents [][]int) string {
	t.Helper()
	root := t.TempDir()
	addMegatron(t, root, name, code, documents)
	return root
}

func addMegatron(t testing.TB, root, name string, code byte, documents [][]int) {
	t.Helper()
	width := tokenTypes[megatronTypes[code]].Bytes()
	var bin []byte
	for i := range sum(slices.Concat(documents...)) {
		bin = append(bin, binary.LittleEndian.AppendUint64(nil, uint64(i))[:width]...)
	}
	for ending, b := range map[string][]byte{".idx": megatronIndex(code, width, documents), ".bin": bin} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name+ending), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func sum(all []int) (n int) {
	for _, i := range all {
		n += i
	}
	return n
}

// TestMegatron: each type, as lists and as blobs, with the types of Megatron's numbers;
// from a folder and from a bucket.
func TestMegatron(t *testing.T) {
	documents := [][]int{{3}, {0}, {2}}
	for code, name := range megatronTypes {
		root := megatronDir(t, "corpus_text_document", code, documents)
		r := readAll(t, root, Options{}, ReadOptions{})
		want := []string{"train corpus_text_document#0: tokens=[0,1,2] n_tokens=3",
			"train corpus_text_document#1: tokens=[] n_tokens=0", "train corpus_text_document#2: tokens=[3,4] n_tokens=2"}
		if !slices.Equal(r.rows, want) || len(r.bad) > 0 {
			t.Errorf("%s: %q, bad %q; want %q", name, r.rows, badOf(r), want)
		}
		f := r.schema.Field(1)
		if list, ok := f.Type.(*arrow.ListType); !ok || list.Elem().Name() != name {
			t.Errorf("%d: tokens are %s, want a list of %s", code, f.Type, name)
		}
		b := readAll(t, filepath.Join(root, "corpus_text_document.bin"), Options{TokenBlobs: true}, ReadOptions{})
		width := tokenTypes[name].Bytes()
		if len(b.blobs) != 3 || len(b.blobs[0]) != 3*width || len(b.blobs[1]) != 0 || b.blobs[2][0] != 3 ||
			b.placed != 3 || len(b.bad) > 0 {
			t.Errorf("%s as blobs: %v, %d placed, bad %q", name, b.blobs, b.placed, badOf(b))
		}
		f = b.schema.Field(b.schema.NumFields() - 1)
		if got, _ := f.Metadata.GetValue("bowstring.tokens"); !schema.IsBlob(f) || got != name {
			t.Errorf("%d: as blobs they are %s of %q", code, f.Type, got)
		}
	}
}

// TestMegatronSequences: documents of several sequences keep their borders; splits follow
// from names.
func TestMegatronSequences(t *testing.T) {
	root := megatronDir(t, "x/train_text_sentence", 8, [][]int{{2, 1}, {1}})
	addMegatron(t, root, "x/valid_text_sentence", 8, [][]int{{1}, {1}})
	r := readAll(t, root, Options{}, ReadOptions{})
	want := []string{"train x/train_text_sentence#0: tokens=[0,1,2] n_tokens=3 sequences=[2,1]",
		"train x/train_text_sentence#1: tokens=[3] n_tokens=1 sequences=[1]",
		"valid x/valid_text_sentence#0: tokens=[0] n_tokens=1 sequences=[1]",
		"valid x/valid_text_sentence#1: tokens=[1] n_tokens=1 sequences=[1]"}
	if !slices.Equal(r.rows, want) || len(r.bad) > 0 || !slices.Equal(r.splits, []string{"train", "valid"}) {
		t.Errorf("%q, bad %q, splits %q; want %q", r.rows, badOf(r), r.splits, want)
	}
	r = readAll(t, root, Options{Split: "valid", LeaveOut: []string{"tokens", "sequences"}}, ReadOptions{})
	if len(r.rows) != 2 || r.rows[1] != "valid x/valid_text_sentence#1: n_tokens=1" {
		t.Errorf("without tokens: %q", r.rows)
	}
	other := megatronDir(t, "a", 8, [][]int{{1}})
	addMegatron(t, other, "b", 4, [][]int{{1}})
	if _, err := Open(t.Context(), other, Options{}); !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(),
		"b has token ids of int32, and a of uint16") {
		t.Errorf("two types: %v", err)
	}
}

// TestMegatronDamaged: defects are reported with their place, the rest is read, and no
// byte is read twice.
func TestMegatronDamaged(t *testing.T) {
	documents := [][]int{{4}, {4}, {4}}
	whole := megatronIndex(8, 2, documents)
	counts, places, borders := int(megatronFront), int(megatronFront)+12, int(megatronFront)+36
	put32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b }
	}
	put64 := func(at int, v uint64) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint64(b[at:], v); return b }
	}
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		bin    int // bytes of the tokens
		rows   int
		bad    string
	}{
		"whole":              {func(b []byte) []byte { return b }, 24, 3, ""},
		"no magic":           {func(b []byte) []byte { b[0] = 'X'; return b }, 24, 0, "does not begin with MMIDIDX"},
		"a cut header":       {func(b []byte) []byte { return b[:20] }, 24, 0, "cut short: an index has 42 bytes at least, and this one 20"},
		"empty":              {func([]byte) []byte { return nil }, 24, 0, "cut short"},
		"a cut list":         {func(b []byte) []byte { return b[:len(b)-1] }, 24, 0, "cut short: 3 sequences and 4 borders"},
		"more behind":        {func(b []byte) []byte { return append(b, 0) }, 24, 0, "unknown bytes behind the end: 1 bytes"},
		"modes":              {func(b []byte) []byte { return append(b, 0, 0, 0) }, 24, 0, "modes"},
		"version 2":          {put64(9, 2), 24, 0, "version 2; want 1"},
		"floats":             {func(b []byte) []byte { b[17] = 6; return b }, 24, 0, "floating-point"},
		"a type":             {func(b []byte) []byte { b[17] = 99; return b }, 24, 0, "unknown type 99"},
		"countless":          {put64(18, 1<<62), 24, 0, "cut short: it counts 4611686018427387904 sequences"},
		"countless borders":  {put64(26, 1<<63+1), 24, 0, "cut short: it counts 3 sequences"},
		"no border":          {put64(26, 0), 24, 0, "cut short"},
		"a negative size":    {put32(counts+4, 0xffffffff), 24, 2, "#1: sequence 1 has -1 tokens"},
		"a size too large":   {put32(counts+8, 5), 24, 2, "#2: sequence 2 has 10 bytes from byte 16 on, and the file has 24"},
		"a size too small":   {put32(counts, 3), 24, 2, "#0: sequence 0 ends at byte 6, and what follows begins at 8"},
		"out of the file":    {put64(places+16, 1<<40), 24, 1, "#2: sequence 2 has 8 bytes from byte 1099511627776 on"},
		"before the file":    {put64(places+8, 1<<63), 24, 1, "#1: sequence 1 begins at byte -9223372036854775808"},
		"overlapping":        {put64(places+8, 4), 24, 1, "#1: sequence 1 ends at byte 12, and what follows begins at 16"},
		"not at the front":   {put64(places, 2), 24, 2, "#0: sequence 0 begins at byte 2: the bytes before are in none"},
		"cut tokens":         {func(b []byte) []byte { return b }, 23, 2, "#2: sequence 2 has 8 bytes from byte 16 on, and the file has 23"},
		"more tokens":        {func(b []byte) []byte { return b }, 26, 2, "#2: sequence 2 ends at byte 24, and what follows begins at 26"},
		"a border backwards": {put64(borders+16, 0), 24, 1, "document 1 has the sequences from 1 to 0, of 3"},
		"a border outside":   {put64(borders+24, 9), 24, 2, "document 2 has the sequences from 2 to 9, of 3"},
		"a first border":     {put64(borders, 1), 24, 0, "its first document begins with sequence 1"},
		"a last border":      {put64(borders+24, 2), 24, 3, "x: its documents have 2 of 3 sequences"},
		"no tokens":          {func(b []byte) []byte { return b }, -1, 0, "x.bin: unreadable: no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string][]byte{"x.idx": c.change(slices.Clone(whole)), "y.idx": megatronIndex(8, 2, [][]int{{1}}),
				"y.bin": {7, 0}}
			if c.bin >= 0 {
				files["x.bin"] = make([]byte, c.bin)
			}
			root := writeFuzzed(t, files)
			for _, opts := range []Options{{}, {TokenBlobs: true}} {
				r := readAll(t, root, opts, ReadOptions{})
				if len(r.rows) != c.rows+1 || !strings.Contains(strings.Join(badOf(r), "\n"), c.bad) ||
					c.bad == "" && len(r.bad) > 0 {
					t.Errorf("%d rows %q, bad %q; want %d and %q", len(r.rows), r.rows, badOf(r), c.rows+1, c.bad)
				}
			}
		})
	}
}

// TestMegatronBounds: an index in which many sequences claim all tokens does not multiply
// them.
func TestMegatronBounds(t *testing.T) {
	const n = 2000
	documents := make([][]int, n)
	for i := range documents {
		documents[i] = []int{0}
	}
	index := megatronIndex(8, 2, documents)
	for i := range n { // every other sequence claims all tokens
		if i%2 == 0 {
			binary.LittleEndian.PutUint32(index[int(megatronFront)+4*i:], 50_000)
		}
		binary.LittleEndian.PutUint64(index[int(megatronFront)+4*n+8*i:], uint64(100_000*(i%2)))
	}
	root := writeFuzzed(t, map[string][]byte{"x.idx": index, "x.bin": make([]byte, 100_000)})
	r := readAll(t, root, Options{TokenBlobs: true}, ReadOptions{})
	total := 0
	for _, b := range r.blobs {
		total += len(b)
	}
	if total > 100_000 || len(r.rows)+len(r.bad) != n {
		t.Errorf("%d bytes of 100,000, %d rows and %d bad of %d", total, len(r.rows), len(r.bad), n)
	}
}

// TestMegatronRandom: documents are read unchanged, as lists and as blobs.
func TestMegatronRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		documents := make([][]int, rng.IntN(300))
		for i := range documents {
			documents[i] = make([]int, rng.IntN(3))
			for k := range documents[i] {
				documents[i][k] = rng.IntN(200)
			}
		}
		root := megatronDir(t, "x", 4, documents)
		r := readAll(t, root, Options{}, ReadOptions{})
		at := 0
		for i, d := range documents {
			tokens := make([]string, 0, sum(d))
			for range sum(d) {
				tokens = append(tokens, fmt.Sprint(at))
				at++
			}
			want := fmt.Sprintf("train x#%d: tokens=[%s] n_tokens=%d", i, strings.Join(tokens, ","), sum(d))
			if i >= len(r.rows) || r.rows[i] != want && !strings.HasPrefix(r.rows[i], want+" sequences=") {
				t.Fatalf("document %d of %v: bad %q, want %.300s", i, documents[i], badOf(r), want)
			}
		}
	}
}

func FuzzMegatron(f *testing.F) {
	f.Add(megatronIndex(8, 2, [][]int{{3}, {0}, {1, 2}}), make([]byte, 12))
	f.Add(megatronIndex(4, 4, [][]int{{1}, {2}}), make([]byte, 12))
	f.Add(megatronIndex(1, 1, nil), []byte{})
	f.Add([]byte(megatronMagic), []byte{1})
	f.Fuzz(func(t *testing.T, index, tokens []byte) {
		root := writeFuzzed(t, map[string][]byte{"x.idx": index, "x.bin": tokens})
		readFuzzed(t, root, "megatron")
		src, err := Open(t.Context(), root, Options{Format: "megatron", TokenBlobs: true})
		if err != nil {
			return
		}
		if src.Rows() > int64(len(index)) {
			t.Errorf("%d rows of an index of %d bytes", src.Rows(), len(index))
		}
		r, err := NewReader(src, ReadOptions{Dataset: "d", Split: "train"})
		if err != nil {
			t.Fatal(err)
		}
		read, rows := int64(0), 0
		for b, err := range r.Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			read, rows = read+b.Bytes, rows+len(b.Keys)+len(b.Bad)
		}
		if read > int64(len(tokens)) || rows > len(index) {
			t.Errorf("%d bytes of %d, %d samples of an index of %d bytes", read, len(tokens), rows, len(index))
		}
	})
}
