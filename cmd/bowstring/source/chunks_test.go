package source

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"

	"bowstring/schema"
)

// tfRecord frames a record.
func tfRecord(record []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(record)))
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(b))
	return binary.LittleEndian.AppendUint32(append(b, record...), maskedCRC(record))
}

// message appends a field that holds bytes.
func message(to []byte, num protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, num, protowire.BytesType), b)
}

// tfExample is a record with features, each in the order of the list: a name and what its
// Feature holds.
func tfExample(features ...any) []byte {
	var all []byte
	for i := 0; i < len(features); i += 2 {
		var list []byte
		num := protowire.Number(tfBytes)
		switch v := features[i+1].(type) {
		case [][]byte:
			for _, b := range v {
				list = message(list, 1, b)
			}
		case []int64:
			num = protowire.Number(tfInts)
			for _, n := range v { // not packed, as proto2 has it
				list = protowire.AppendVarint(protowire.AppendTag(list, 1, protowire.VarintType), uint64(n))
			}
		case []uint32:
			num = protowire.Number(tfFloats)
			for _, n := range v {
				list = protowire.AppendFixed32(protowire.AppendTag(list, 1, protowire.Fixed32Type), n)
			}
		}
		all = message(all, 1, message(message(nil, 1, []byte(features[i].(string))), 2, message(nil, num, list)))
	}
	return message(nil, 1, all)
}

func writeFile(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestTFRecordsRefused: errors state the defect of a record and its place.
func TestTFRecordsRefused(t *testing.T) {
	good := tfRecord(tfExample("x", [][]byte{{0, 1}}, "n", []int64{1}))
	flipped := func(b []byte, at int) []byte {
		b = bytes.Clone(b)
		b[at] ^= 1
		return b
	}
	for name, c := range map[string]struct {
		file []byte
		rows int    // -1 if it cannot be opened
		bad  string // of the file or of a row
	}{
		"content":    {slices.Concat(good, flipped(good, 20), good), 2, "x.tfrecord#1: its checksum is wrong"},
		"length":     {slices.Concat(good, flipped(good, 1)), 1, fmt.Sprintf("at byte %d, after 1 records, the checksum of a length", len(good))},
		"cut":        {slices.Concat(good, good[:len(good)-3]), 1, "cut short at record 1"},
		"cut head":   {slices.Concat(good, good[:7]), 1, "7 bytes at the end, after 1 records"},
		"zlib":       {append([]byte{0x78, 0x9c}, make([]byte, 20)...), -1, "it is compressed by zlib"},
		"no record":  {[]byte("this is no file of records"), -1, "no record of TensorFlow"},
		"empty":      {nil, -1, "none has a feature"},
		"no example": {slices.Concat(good, tfRecord([]byte("text"))), 1, "x.tfrecord#1: it is no tf.train.Example"},
		"kinds": {slices.Concat(good, tfRecord(tfExample("x", []int64{1}))), -1,
			"feature x is bytes_list in one record and int64_list in another; --leave-out"},
		"blobs": {slices.Concat(good, tfRecord(tfExample("x", [][]byte{{1}, {2}}))), -1,
			"feature x holds between 1 and 2 blobs a record, and a row has one blob in a column: --spread x=N"},
		"large": {func() []byte {
			b := binary.LittleEndian.AppendUint64(nil, 1<<40)
			return slices.Concat(good, binary.LittleEndian.AppendUint32(b, maskedCRC(b)))
		}(), 1, "record 1 has 1099511627776 bytes, more than"},
		"claim": {func() []byte {
			b := binary.LittleEndian.AppendUint64(nil, 1<<31)
			return slices.Concat(good, binary.LittleEndian.AppendUint32(b, maskedCRC(b)))
		}(), 1, "cut short at record 1"},
		"missing": {slices.Concat(good, tfRecord(tfExample("n", []int64{1}))), 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			writeFile(t, filepath.Join(root, "x.tfrecord"), c.file)
			if c.rows < 0 {
				if _, err := Open(t.Context(), root, Options{}); !errors.Is(err, schema.ErrInvalid) ||
					!strings.Contains(err.Error(), c.bad) {
					t.Errorf("%v, want %q", err, c.bad)
				}
				return
			}
			r := readAll(t, root, Options{}, ReadOptions{})
			if bad := strings.Join(badOf(r), "\n"); len(r.rows) != c.rows || !strings.Contains(bad, c.bad) ||
				c.bad == "" && bad != "" {
				t.Errorf("%d rows, bad %q; want %d, %q", len(r.rows), bad, c.rows, c.bad)
			}
		})
	}
	if _, err := Open(t.Context(), "testdata/tfrecord/sequence", Options{}); err == nil ||
		!strings.Contains(err.Error(), "SequenceExample") {
		t.Errorf("a SequenceExample: %v", err)
	}
}

// TestLitDataRefused: formats of litdata without a plain form are rejected by name.
func TestLitDataRefused(t *testing.T) {
	for dir, message := range map[string]string{"pickle": "format pickle is pickle", "pil": "format pil is bare pixels",
		"arrow": "format json is litdata's own form"} {
		if _, err := Open(t.Context(), "testdata/litdata/"+dir, Options{}); !errors.Is(err, schema.ErrInvalid) ||
			!strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v, want %q", dir, err, message)
		}
	}
	index, err := os.ReadFile("testdata/litdata/plain/val/index.json")
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := os.ReadFile("testdata/litdata/plain/val/chunk-0-0.bin")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ from, to, message string }{
		"loader":     {`"PyTreeLoader"`, `"TokensLoader"`, "tokens without borders"},
		"encryption": {`"encryption": null`, `"encryption": {"algorithm": "fernet"}`, "its chunks are encrypted"},
		"spec":       {`builtins.tuple`, `torch.return_types.max`, "has no plain form"},
		"formats":    {`"jpeg", `, ``, "names"},
		"escape":     {`"filename": "chunk-0-0.bin"`, `"filename": "../x"`, `file "../x"`},
		"level":      {`"compression_level": null`, `"compression_level": "file"`, "want chunk, batch or sample"},
		"dtype":      {`no_header_tensor:18`, `no_header_tensor:10`, "type number 10"},
		"twice":      {`\\\"lat\\\", \\\"name\\\"`, `\\\"lat\\\", \\\"lat\\\"`, "two values for column place_lat"},
	} {
		root := t.TempDir()
		changed := bytes.Replace(index, []byte(c.from), []byte(c.to), 1)
		if bytes.Equal(changed, index) {
			t.Fatalf("%s: %s is not there", name, c.from)
		}
		writeFile(t, filepath.Join(root, "index.json"), changed)
		writeFile(t, filepath.Join(root, "chunk-0-0.bin"), chunk)
		if _, err := Open(t.Context(), root, Options{}); !errors.Is(err, schema.ErrInvalid) ||
			!strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, want %q", name, err, c.message)
		}
	}
}

// TestDamagedChunks damages chunks of every kind at many places. They may be read or
// rejected, but served bytes are at their extents, and nothing panics.
func TestDamagedChunks(t *testing.T) {
	for _, kind := range []string{"bare", "chunk", "batch", "sample"} {
		files, err := filepath.Glob(filepath.Join("testdata/litdata", kind, "chunk-0-0*"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		root := t.TempDir()
		if err := os.CopyFS(root, os.DirFS(filepath.Join("testdata/litdata", kind))); err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(whole); i += 1 + len(whole)/150 {
			b := bytes.Clone(whole)
			b[i] ^= 0x55
			writeFile(t, filepath.Join(root, filepath.Base(files[0])), b)
			readFuzzed(t, root, "litdata")
			writeFile(t, filepath.Join(root, filepath.Base(files[0])), whole[:i])
			readFuzzed(t, root, "litdata")
		}
	}
}

// TestChunkBombs: sizes that an index, a header or a frame claims take no memory before
// the bytes exist.
func TestChunkBombs(t *testing.T) {
	index := func(level, format string, samples int) []byte {
		return fmt.Appendf(nil, `{"chunks": [{"chunk_bytes": 9, "chunk_size": %d, "filename": "c.bin"}], "config": `+
			`{"compression": "zstd", "compression_level": %q, "data_format": [%q], "data_spec": "[1, {\"type\": null}]"}}`,
			samples, level, format)
	}
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	zeros := w.EncodeAll(make([]byte, 1<<28), nil)
	head := append([]byte(litFramed), 1, 0, 0, 0)
	frame := func(samples, batches int, size uint32) []byte {
		b := append(bytes.Clone(head), uint32s(samples, 1, batches)...)
		b = append(b, uint32s(0, int(size))...)
		b = append(b, uint32s(0, samples)...)
		b = binary.LittleEndian.AppendUint64(b, uint64(len(b)+16))
		return append(append(b, uint32s(len(zeros), int(size))...), zeros...)
	}
	for name, c := range map[string]struct {
		index, chunk []byte
		message      string
	}{
		"batches": {index("batch", "bytes", 1), append(bytes.Clone(head), 255, 255, 255, 255, 1, 0, 0, 0, 255, 255, 255, 255),
			"batches of 4294967295 samples"},
		"offsets": {index("batch", "bytes", 1<<24), append(bytes.Clone(head), 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1), "cut short"},
		"frame":   {index("batch", "bytes", 1), frame(1, 1, 100), "another size decoded"},
		"sample": {index("sample", "bytes", 1), slices.Concat(uint32s(1, 12, 12+len(zeros)), zeros),
			"bytes hold no sizes|column value has 0 bytes|268435452 bytes follow"},
		"table": {index("chunk", "bytes", 1<<24), zeros, "it holds 0 samples"},
		"array": {index("chunk", "numpy", 1), w.EncodeAll(slices.Concat(uint32s(1, 12, 12+4+16, 16, 0, 2, 1<<31-1, 1<<31-1)), nil),
			"no array that can be read"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			writeFile(t, filepath.Join(root, "index.json"), c.index)
			writeFile(t, filepath.Join(root, "c.bin"), c.chunk)
			got := strings.Join(inChild(t, VerifyNone, root), "\n")
			if !slices.ContainsFunc(strings.Split(c.message, "|"), func(m string) bool { return strings.Contains(got, m) }) {
				t.Errorf("got %q, want %q", got, c.message)
			}
		})
	}
}

// The bytes at each extent are those of the blob, in made-up records and chunks.
func TestExtentsOfRandomShards(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	blob := func() []byte {
		b := make([]byte, 1+rng.IntN(500))
		for i := range b[1:] { // the first is 0, which is not text
			b[1+i] = byte(rng.IntN(4))
		}
		return b
	}
	for range 60 {
		root := t.TempDir()
		n := 1 + rng.IntN(40)
		var records []byte
		for range n {
			features := []any{"n", []int64{rng.Int64() - rng.Int64()}, "a", [][]byte{blob()}}
			if rng.IntN(3) > 0 {
				features = append(features, "b", [][]byte{blob()}, "f", make([]uint32, rng.IntN(3)))
			}
			records = append(records, tfRecord(tfExample(features...))...)
		}
		packed := rng.IntN(2) == 0
		if packed {
			writeFile(t, filepath.Join(root, "tf/x.tfrecord.gz"), []byte(gzipped(t, string(records))))
		} else {
			writeFile(t, filepath.Join(root, "tf/x.tfrecord"), records)
		}
		got := checkExtents(t, filepath.Join(root, "tf"), Options{})
		if got.rows != n || got.none > 0 || packed && got.plain > 0 || !packed && got.packed > 0 {
			t.Fatalf("records: %+v", got)
		}
		var samples [][]byte
		for range n {
			samples = append(samples, blob())
		}
		shard := mdsShardOf(samples...)
		level := []string{"", "chunk", "sample", "batch"}[rng.IntN(4)]
		compression := "zstd"
		switch level {
		case "":
			compression = ""
		case "chunk":
			shard = w.EncodeAll(shard, nil)
		case "sample":
			for i, s := range samples {
				samples[i] = w.EncodeAll(append(uint32s(len(s)), s...), nil)
			}
			shard = litEach(samples)
		case "batch":
			shard = litBatches(w, samples, 1+rng.IntN(10))
		}
		writeFile(t, filepath.Join(root, "lit/c.bin"), shard)
		writeFile(t, filepath.Join(root, "lit/index.json"), fmt.Appendf(nil, `{"chunks": [{"chunk_bytes": 9, "chunk_size": `+
			`%d, "filename": "c.bin"}], "config": {"compression": %q, "compression_level": %q, "data_format": ["bytes"], `+
			`"data_spec": "[1, {\"type\": null}]"}}`, n, compression, level))
		got = checkExtents(t, filepath.Join(root, "lit"), Options{})
		if got.rows != n || got.none > 0 || level != "" && got.plain > 0 || level == "" && got.packed > 0 {
			t.Fatalf("chunks compressed by %q: %+v", level, got)
		}
	}
}

// litEach is a chunk of samples that are compressed each.
func litEach(packed [][]byte) []byte {
	at := 4 + 4*(len(packed)+1)
	offsets := []int{at}
	for _, p := range packed {
		at += len(p)
		offsets = append(offsets, at)
	}
	return slices.Concat(uint32s(len(packed)), uint32s(offsets...), slices.Concat(packed...))
}

// litBatches is a chunk of samples that are compressed in batches of k.
func litBatches(w *zstd.Encoder, samples [][]byte, k int) []byte {
	n := len(samples)
	count := (n + k - 1) / k
	head := append(append([]byte(litFramed), 1, 0, 0, 0), uint32s(n, k, count)...)
	at := 0
	offsets := []int{0}
	for _, s := range samples {
		at += 4 + len(s)
		offsets = append(offsets, at)
	}
	head = append(head, uint32s(offsets...)...)
	begin := len(head) + 24*count
	var table, body []byte
	for i := 0; i < n; i += k {
		var raw []byte
		batch := samples[i:min(i+k, n)]
		for _, s := range batch {
			raw = append(append(raw, uint32s(len(s))...), s...)
		}
		packed := w.EncodeAll(raw, nil)
		table = append(table, uint32s(i, len(batch))...)
		table = binary.LittleEndian.AppendUint64(table, uint64(begin+len(body)))
		table = append(table, uint32s(len(packed), len(raw))...)
		body = append(body, packed...)
	}
	return slices.Concat(head, table, body)
}

func FuzzTFRecord(f *testing.F) {
	for _, name := range []string{"records/val.tfrecord-00000-of-00001", "sequence/x.tfrecord", "packed/train.tfrecord.gz"} {
		b, err := os.ReadFile(filepath.Join("testdata/tfrecord", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		readFuzzed(t, filepath.Join(writeFuzzed(t, map[string][]byte{"x.tfrecord": b}), "x.tfrecord"), "tfrecord")
	})
}

// FuzzExample: for any record, all values are within it.
func FuzzExample(f *testing.F) {
	f.Add(tfExample("a", [][]byte{{1, 2}, {}}, "b", []int64{-1, 5}, "c", []uint32{1, 2}))
	f.Add(message(nil, 2, []byte("x")))
	f.Add(message(nil, 1, message(nil, 1, message(message(nil, 1, []byte("a")), 2, message(nil, 3, message(nil, 1, []byte{0x80}))))))
	f.Fuzz(func(t *testing.T, b []byte) {
		values, _ := parseExample(b)
		for name, v := range values {
			for _, p := range v.parts {
				if p.at < 0 || p.size < 0 || p.at+p.size > len(b) {
					t.Errorf("feature %q: bytes %d to %d of %d", name, p.at, p.at+p.size, len(b))
				}
			}
			if len(v.parts)+len(v.numbers) > len(b) {
				t.Errorf("feature %q: %d values of %d bytes", name, len(v.parts)+len(v.numbers), len(b))
			}
		}
		readFuzzed(t, writeFuzzed(t, map[string][]byte{"x.tfrecord": tfRecord(b)}), "tfrecord")
	})
}

func FuzzLitData(f *testing.F) {
	for _, kind := range []string{"bare", "chunk", "batch", "sample", "arrow"} {
		index, err := os.ReadFile(filepath.Join("testdata/litdata", kind, "index.json"))
		if err != nil {
			f.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join("testdata/litdata", kind, "chunk-0-0*"))
		if err != nil || len(files) != 1 {
			f.Fatal(files, err)
		}
		chunk, err := os.ReadFile(files[0])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.ReplaceAll(index, []byte(filepath.Base(files[0])), []byte("c.bin")), chunk)
	}
	f.Fuzz(func(t *testing.T, index, chunk []byte) {
		readFuzzed(t, writeFuzzed(t, map[string][]byte{"index.json": index, "c.bin": chunk}), "litdata")
	})
}
