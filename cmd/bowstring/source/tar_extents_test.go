package source

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// randomTar writes a tar of samples in one of the formats, with names that are short and
// long, and some sizes in base 256, as GNU tar writes large ones. It returns how many
// blobs it has.
func randomTar(t *testing.T, rng *rand.Rand, shard int) (content []byte, blobs int) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	format := []tar.Format{tar.FormatUSTAR, tar.FormatPAX, tar.FormatGNU}[rng.IntN(3)]
	var based []int // headers whose sizes are written anew
	for i := range 1 + rng.IntN(6) {
		key := fmt.Sprintf("%d-%d", shard, i)
		switch {
		case format != tar.FormatUSTAR && rng.IntN(3) == 0:
			key = strings.Repeat("n", 90+rng.IntN(300)) + key
		case rng.IntN(3) == 0:
			key = strings.Repeat("d", 90) + "/" + key
		}
		for _, ext := range []string{"bin", "cls", "txt", "raw.npy"} {
			data := make([]byte, rng.IntN(2000)>>rng.IntN(11))
			for j := range data {
				data[j] = byte(rng.Uint32())
			}
			switch ext {
			case "cls":
				data = []byte(fmt.Sprint(i))
			case "txt":
				data = []byte("text")
			default:
				blobs++
			}
			h := &tar.Header{Name: key + "." + ext, Mode: 0o644, Size: int64(len(data)), Format: format}
			if format == tar.FormatPAX && rng.IntN(2) == 0 {
				h.PAXRecords = map[string]string{"BOWSTRING.x": strings.Repeat("p", rng.IntN(1500))}
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if format == tar.FormatGNU && rng.IntN(3) == 0 {
				based = append(based, b.Len()-tarBlock)
			}
			if _, err := w.Write(data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	content = b.Bytes()
	for _, at := range based {
		header := content[at : at+tarBlock]
		var size int64
		if _, err := fmt.Sscanf(string(header[124:135]), "%o", &size); err != nil {
			t.Fatal(err)
		}
		clear(header[124:136])
		header[124] = 0x80
		binary.BigEndian.PutUint64(header[128:], uint64(size))
		copy(header[148:156], "        ")
		sum := 0
		for _, c := range header {
			sum += int(c)
		}
		copy(header[148:156], fmt.Sprintf("%06o\x00 ", sum))
	}
	return content, blobs
}

// Each blob of a tar is at its extent, for every form of names and sizes, also if only
// headers are read; readAll compares.
func TestExtentsOfTars(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 15 {
		files, want := map[string]string{}, 0
		for n := range 1 + rng.IntN(3) {
			content, blobs := randomTar(t, rng, n)
			want += blobs
			if rng.IntN(4) == 0 { // two tars that were joined
				more, blobs := randomTar(t, rng, 10+n)
				content, want = append(content, more...), want+blobs
			}
			files[fmt.Sprintf("x-%d.tar", n)] = string(content)
		}
		r := readAll(t, tree(t, files), Options{}, ReadOptions{})
		if r.placed != want || len(r.bad) > 0 {
			t.Errorf("%d of %d blobs have a place; bad %v", r.placed, want, r.bad)
		}
	}
	packed := readAll(t, tree(t, map[string]string{"x.tar.gz": gzipped(t, makeTar(t, entry{"a.bin", "1"}))}), Options{},
		ReadOptions{})
	if packed.placed != 0 || len(packed.keys) != 1 {
		t.Errorf("of a compressed tar %d blobs have a place", packed.placed)
	}
}
