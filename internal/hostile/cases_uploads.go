package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/codes"
)

// manyRows is the most rows that a batch may have.
const manyRows = 4 << 20

// putting returns a case that uploads messages after a schema.
func putting(name string, want []codes.Code, text string, schema []byte, messages ...[]byte) Case {
	return asking(name, "DoPut", want, text, append([][]byte{data(put(Scratch), schema, nil)}, messages...)...)
}

// exchanging returns a case that requests samples by DoExchange, with the given messages.
func exchanging(name string, want []codes.Code, text string, schema []byte, messages ...[]byte) Case {
	return asking(name, "DoExchange", want, text, append([][]byte{data(take(Dataset), schema, nil)}, messages...)...)
}

// squeezed compresses b by zstd.
func squeezed(b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err) // no option can be wrong
	}
	return w.EncodeAll(b, nil)
}

// uploads are cases of record batches, dictionaries and schemas. Each violates one rule
// of Arrow IPC, or costs much more memory than its bytes.
func uploads() []Case {
	// Fields by which the cases build their schemas.
	id := int64(7)
	noWidth := field{name: "id", kind: typeFixedSizeBinary}
	label := field{name: "label", kind: typeInt, width: 64}
	flag := field{name: "flag", kind: typeBool}
	text := field{name: "text", kind: typeUtf8}
	kind := field{name: "kind", kind: typeUtf8, dictionary: &id}
	image := field{name: "image", kind: typeBinary}
	position := field{name: "position", kind: typeInt, width: 64}
	bare := func(rows int64) []byte { return column(rows, plain, nil).record() }
	long := make([]byte, 1<<20)
	// A dictionary of one value of a MiB.
	words := batch{rows: 1, nodes: [][2]int64{{1, 0}}, buffers: [][]byte{nil, offsets32(0, int32(len(long))), long},
		codec: plain}
	// A correct claim, and much smaller on the wire than in memory.
	zeros := func(n int) []byte { return claiming(int64(n), squeezed(make([]byte, n))) }
	flags := column(manyRows, codecZstd, zeros(manyRows/8)).record()
	// A zstd frame: magic number, descriptor, and a window of 2^41 bytes.
	hugeWindow := append(binary.LittleEndian.AppendUint32(nil, 0xFD2FB528), 0, 0xF8, 1, 0, 0)

	// The order is: batches, types, dictionaries, compression, buffers, columns, schemas,
	// and uploads that only their sum makes too large.
	cases := []Case{
		exchanging("ids without width, 2^31 rows", exhausted, "MaxBatchRows", schemaMessage(noWidth), bare(1<<31)),
		exchanging("ids without width, 2^44 rows", exhausted, "MaxBatchRows", schemaMessage(noWidth), bare(1<<44)),
		exchanging("ids without width, few rows", invalid, "take no bytes", schemaMessage(noWidth), bare(manyRows)),
		exchanging("positions without any", invalid, "its values have 0 bytes", schemaMessage(position),
			bare(manyRows)),
		exchanging("rows below zero", invalid, "-1 rows", schemaMessage(position), bare(-1)),
		putting("ids without width, uploaded", exhausted, "MaxBatchRows", schemaMessage(noWidth), bare(1<<31)),
		putting("fixed_size_binary[0]", invalid, "width of at least 1",
			schemaMessage(field{name: "x", kind: typeFixedSizeBinary}), bare(1<<44)),
		putting("struct without fields", invalid, "struct without fields",
			schemaMessage(field{name: "x", kind: typeStruct}), bare(1<<44)),
		putting("null", invalid, `column "x"`, schemaMessage(field{name: "x", kind: typeNull}), bare(1<<44)),
		putting("fixed_size_list[0]", invalid, "a schema of Arrow IPC cannot be read",
			schemaMessage(field{name: "x", kind: typeFixedSizeList, children: []field{flag}}), bare(1<<44)),
		putting("fixed_size_list of 2^31-1", either, "",
			schemaMessage(field{name: "x", kind: typeFixedSizeList, width: 1<<31 - 1, children: []field{flag}}),
			batch{rows: manyRows, nodes: [][2]int64{{manyRows, 0}, {manyRows * (1<<31 - 1), 0}},
				buffers: [][]byte{nil, nil, nil}, codec: plain}.record()),
		putting("run-end encoded", invalid, "", schemaMessage(field{name: "x", kind: typeRunEndEncoded,
			children: []field{{name: "run_ends", kind: typeInt, width: 32}, {name: "values", kind: typeBool}}}),
			bare(1<<44)),
		putting("list view", invalid, "", schemaMessage(field{name: "x", kind: typeListView, children: []field{flag}}),
			bare(1<<44)),
		putting("union", invalid, "union", schemaMessage(field{name: "x", kind: typeUnion, children: []field{flag}}),
			bare(1<<44)),
		putting("dictionary of one long value", exhausted, "", schemaMessage(kind), words.dictionary(id, false),
			column(manyRows, plain, make([]byte, manyRows)).record()),
		putting("dictionary that never comes", invalid, "has not come", schemaMessage(kind),
			column(1, plain, []byte{0}).record()),
		putting("dictionary of no column", invalid, "which no column has", schemaMessage(kind),
			words.dictionary(8, false)),
		putting("index beyond the dictionary", invalid, "of a dictionary of 1", schemaMessage(kind),
			words.dictionary(id, false), column(1, plain, []byte{1}).record()),
		putting("claim of 2^40", exhausted, "MaxMessageBytes", schemaMessage(label),
			column(1, codecZstd, claiming(1<<40, squeezed(make([]byte, 8)))).record()),
		putting("claim below zero", invalid, "claims -5 bytes", schemaMessage(label),
			column(1, codecZstd, claiming(-5, squeezed(make([]byte, 8)))).record()),
		putting("more than its claim", invalid, "cannot be decompressed", schemaMessage(label),
			column(1, codecZstd, claiming(8, squeezed(make([]byte, 64<<20)))).record()),
		putting("less than its claim", invalid, "cannot be decompressed", schemaMessage(label),
			column(1, codecZstd, claiming(8<<20, squeezed(make([]byte, 8)))).record()),
		putting("window of 2^41", invalid, "cannot be decompressed", schemaMessage(label),
			column(1, codecZstd, claiming(8, hugeWindow)).record()),
		putting("lz4 that is none", invalid, "cannot be decompressed", schemaMessage(label),
			column(1, codecLZ4, claiming(8, []byte("no lz4 at all"))).record()),
		putting("codec that is none", invalid, "codec 99", schemaMessage(label),
			column(1, 99, claiming(8, long)).record()),
		putting("buffer outside of the body", invalid, "a buffer is at", schemaMessage(label),
			batch{rows: 1, nodes: [][2]int64{{1, 0}}, claims: [][2]int64{{0, 0}, {1 << 62, 1 << 62}},
				codec: plain}.record()),
		putting("buffer before the body", invalid, "a buffer is at", schemaMessage(label),
			batch{rows: 1, nodes: [][2]int64{{1, 0}}, claims: [][2]int64{{0, 0}, {-8, 8}}, codec: plain}.record()),
		putting("offsets that descend", invalid, "offset", schemaMessage(text),
			column(2, plain, offsets32(0, 4, 2), long).record()),
		putting("offsets beyond the end", invalid, "offset", schemaMessage(text),
			column(1, plain, offsets32(0, 1<<30), long).record()),
		putting("nulls without a bitmap", invalid, "validity", schemaMessage(label),
			batch{rows: 8, nodes: [][2]int64{{8, 8}}, buffers: [][]byte{nil, make([]byte, 64)}, codec: plain}.record()),
		putting("more columns than its schema", invalid, "more columns", schemaMessage(flag),
			batch{rows: 1, nodes: [][2]int64{{1, 0}, {1, 0}}, buffers: [][]byte{nil, {1}, nil, {1}},
				codec: plain}.record()),
		putting("fewer columns than its schema", invalid, "fewer columns", schemaMessage(flag, label),
			column(1, plain, []byte{1}).record()),
		putting("schema of 100,000 columns", invalid, "fields and pairs", repeated(100_000, flag)),
		putting("schema of 5,000 columns", invalid, "5000 columns", repeated(5000, flag)),
		putting("schema nested 5,000 levels", invalid, "levels deep", nested(5000)),
		putting("schema of 3 MiB", exhausted, "schema has",
			schemaMessage(field{name: string(bytes.Repeat([]byte("x"), 3<<20)), kind: typeBool})),
		asking("no schema", "DoPut", invalid, "where a schema does",
			withCommand(put(Scratch), column(1, plain, []byte{1}).record())),
		{Name: "booleans again and again", Codes: exhausted, Text: "uploads",
			Run: func(ctx context.Context, t Target) error {
				messages := [][]byte{data(put(Scratch), schemaMessage(flag), nil)}
				for range 64 {
					messages = append(messages, flags)
				}
				return t.Ask(ctx, "DoPut", messages...)
			}},
		{Name: "dictionaries that grow", Codes: exhausted, Run: func(ctx context.Context, t Target) error {
			one := batch{rows: 1, nodes: [][2]int64{{1, 0}}, buffers: [][]byte{nil, offsets32(0, 1), {'x'}},
				codec: plain}
			messages := [][]byte{data(put(Scratch), schemaMessage(kind), nil), words.dictionary(id, false)}
			for range 5000 {
				messages = append(messages, one.dictionary(id, true))
			}
			return t.Ask(ctx, "DoPut", messages...)
		}},
		{Name: "blobs of nothing", Codes: exhausted, Text: "uploads", Run: func(ctx context.Context, t Target) error {
			return t.Ask(ctx, "DoPut", data(put(Scratch), schemaMessage(image), nil),
				column(manyRows, codecZstd, zeros(4*(manyRows+1)), nil).record())
		}},
	}
	// Each word of a valid schema is replaced once by a huge number. Among the words are
	// the lengths of all lists, wherever they are.
	head := schemaMessage(label, text)
	for i := 0; i+4 <= len(head); i += 4 {
		broken := bytes.Clone(head)
		binary.LittleEndian.PutUint32(broken[i:], 0xfffffff0)
		cases = append(cases, Case{Name: fmt.Sprintf("schema broken at %d", i), Codes: either,
			Run: func(ctx context.Context, t Target) error {
				return t.Ask(ctx, "DoPut", data(put(Scratch), broken, nil))
			}})
	}
	return cases
}
