package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// counted is a bucket that counts what is read of its objects.
type counted struct {
	object.Bucket
	requests, bytes atomic.Int64
}

func (c *counted) Range(ctx context.Context, key string, v schema.ObjectVersion, offset int64, buf []byte) error {
	c.requests.Add(1)
	c.bytes.Add(int64(len(buf)))
	return c.Bucket.Range(ctx, key, v, offset, buf)
}

// mdsOf writes shards of samples with columns image (bytes), label (int) and text (str),
// k samples in each.
func mdsOf(t *testing.T, rng *rand.Rand, shards, k, size int) string {
	t.Helper()
	root := t.TempDir()
	var entries []string
	for n := range shards {
		at := 4 + 4*(k+1)
		offsets, content := []int{at}, []byte{}
		for i := range k {
			image := make([]byte, rng.IntN(size))
			for i := range image {
				image[i] = byte(rng.Uint32())
			}
			text := fmt.Sprintf("%*d", rng.IntN(30)+1, i)
			content = append(content, uint32s(len(image), len(text))...)
			content = binary.LittleEndian.AppendUint64(append(content, image...), uint64(i))
			content = append(content, text...)
			offsets = append(offsets, at+len(content))
		}
		shard := slices.Concat(uint32s(k), uint32s(offsets...), content)
		name := fmt.Sprintf("shard.%05d.mds", n)
		writeFile(t, filepath.Join(root, name), shard)
		entries = append(entries, fmt.Sprintf(`{"format": "mds", "version": 2, "column_names": ["image", "label", "text"], `+
			`"column_encodings": ["bytes", "int", "str"], "column_sizes": [null, 8, null], "samples": %d, "raw_data": `+
			`{"basename": %q, "bytes": %d}}`, k, name, len(shard)))
	}
	writeFile(t, filepath.Join(root, "index.json"), fmt.Appendf(nil, `{"version": 2, "shards": [%s]}`,
		bytes.Join(bytesOf(entries), []byte(", "))))
	return root
}

func bytesOf(texts []string) (all [][]byte) {
	for _, s := range texts {
		all = append(all, []byte(s))
	}
	return all
}

// Uncompressed shards are walked by their tables and the heads of samples. The rows are
// those of reading through, and little is read.
func TestMDSWalk(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	root := mdsOf(t, rng, 3, 30, 100_000)
	read := readAll(t, root, Options{}, ReadOptions{}) // also walked, in a bucket
	var bucket *counted
	open := func(ctx context.Context, url string) (object.Bucket, error) {
		b, err := object.Open(ctx, url, object.Options{})
		bucket = &counted{Bucket: b}
		return bucket, err
	}
	var asked Estimate
	walked := readOnce(t, fileURL(root), Options{Walk: true, Bucket: open, Begin: func(e Estimate) error {
		asked = e
		return nil
	}}, ReadOptions{})
	if len(walked.rows) != len(read.rows) || walked.placed != read.placed {
		t.Errorf("%d rows and %d places, want %d and %d", len(walked.rows), walked.placed, len(read.rows), read.placed)
	}
	for key, at := range read.at {
		if walked.at[key] != at {
			t.Errorf("%s is at %s, and walked at %s", key, at, walked.at[key])
		}
	}
	for i, row := range walked.rows {
		if walked.blobsOf[walked.keys[i]] {
			t.Errorf("%s was read", row)
		}
	}
	// Without reading the bytes at the extents.
	src, err := Open(t.Context(), fileURL(root), Options{Walk: true, Bucket: open})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range src.Samples(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	requests, n := bucket.requests.Load(), bucket.bytes.Load()
	t.Logf("%d requests, %d bytes; %+v", requests, n, asked)
	if !src.Walked() || asked.Walked.Bytes >= asked.Through.Bytes/4 || requests > 2*asked.Walked.Requests+10 ||
		n > 2*asked.Walked.Bytes+2*aloneLeast {
		t.Errorf("%d requests for %d bytes, and the estimate is %+v", requests, n, asked)
	}
}

// A shard with damage that walking can see is bad, whether walked or read.
func TestMDSWalkDamaged(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for name, change := range map[string]func(b []byte) []byte{
		"count": func(b []byte) []byte { b[0]++; return b },
		"table": func(b []byte) []byte { b[9] ^= 0x7f; return b },
		"sizes": func(b []byte) []byte { b[binary.LittleEndian.Uint32(b[8:])]++; return b },
		"cut":   func(b []byte) []byte { return b[:len(b)-1] },
		"long":  func(b []byte) []byte { return append(b, 0) },
	} {
		root := mdsOf(t, rng, 1, 4, 100)
		path := filepath.Join(root, "shard.00000.mds")
		b, err := localFiles(root).readWhole(t.Context(), path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, change(b))
		read, walked := readOnce(t, root, Options{}, ReadOptions{}), readOnce(t, root, Options{Walk: true}, ReadOptions{})
		if !slices.Equal(badOf(read), badOf(walked)) || len(read.bad) == 0 {
			t.Errorf("%s: read %q, walked %q", name, badOf(read), badOf(walked))
		}
	}
}
