package webp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"os"
	"testing"

	library "golang.org/x/image/webp"

	"bowstring/fetch/operators/program"
	"bowstring/internal/programtest"
)

// writer writes a bit-stream, the lowest bit first.
type writer struct {
	out  []byte
	bits uint64
	n    uint
}

func (w *writer) put(v uint64, n uint) {
	w.bits |= v << w.n
	for w.n += n; w.n >= 8; w.n -= 8 {
		w.out = append(w.out, byte(w.bits))
		w.bits >>= 8
	}
}

// code writes a canonical code, whose first bit is its highest.
func (w *writer) code(v uint64, n uint) {
	for n > 0 {
		n--
		w.put(v>>n&1, 1)
	}
}

// one puts a tree of one symbol.
func (w *writer) one(symbol uint64) {
	w.put(1, 1) // a simple one
	w.put(0, 1) // of one symbol
	w.put(1, 1) // of eight bits
	w.put(symbol, 8)
}

// lengths returns the number of bits of the short codes of n symbols, and how many symbols
// have them. The others have one bit more.
func lengths(n int) (short uint, count int) {
	short = uint(bits.Len(uint(n)) - 1)
	return short, 1<<(short+1) - n
}

// full puts a tree of n symbols in few bits: their lengths are repeated.
func (w *writer) full(n int) {
	short, count := lengths(n)
	w.put(0, 1)
	w.put(19-4, 4)
	for _, l := range lengthOrder {
		switch uint(l) {
		case repeats:
			w.put(1, 3)
		case short, short + 1:
			w.put(2, 3)
		default:
			w.put(0, 3)
		}
	}
	w.put(0, 1) // lengths of all symbols
	run := func(code uint64, n int) {
		if n == 0 {
			return
		}
		w.code(code, 2)
		for n--; n > 0; {
			k := min(n, 6)
			if k < 3 {
				w.code(code, 2)
				n--
				continue
			}
			w.code(0, 1)
			w.put(uint64(k-3), 2)
			n -= k
		}
	}
	run(2, count)
	run(3, n-count)
}

// symbol puts the code that full gives a symbol.
func (w *writer) symbol(v, n int) {
	short, count := lengths(n)
	if v < count {
		w.code(uint64(v), short)
		return
	}
	w.code(uint64(2*count+v-count), short+1)
}

// manyTrees is a file of side x side pixels that has a group of trees for every 16 of them, as large as trees can be.
func manyTrees(side int) []byte {
	w := &writer{}
	w.put(losslessMagic, 8)
	w.put(uint64(side-1), 14)
	w.put(uint64(side-1), 14)
	w.put(0, 4)
	w.put(0, 1)        // no transform
	w.put(1, 1)        // a cache of colours
	w.put(maxCache, 4) // as large as it can be
	w.put(1, 1)        // several groups
	w.put(0, 3)        // a tile has 4 x 4 pixels
	w.put(0, 1)        // the tiles' image has no cache
	w.full(alphabets[green])
	w.full(literals)
	w.one(0)
	w.one(0)
	w.one(0)
	tiles := over(side, 2) * over(side, 2)
	for i := range tiles {
		i = min(i, maxGroups-1)
		w.symbol(i&0xFF, alphabets[green])
		w.symbol(i>>8, literals)
	}
	for range min(tiles, maxGroups) {
		w.full(alphabets[green] + 1<<maxCache)
		w.full(literals)
		w.full(literals)
		w.full(literals)
		w.full(distanceCodes)
	}
	for range side * side {
		w.symbol(7, alphabets[green]+1<<maxCache)
		w.symbol(1, literals)
		w.symbol(2, literals)
		w.symbol(3, literals)
	}
	w.put(0, 7)
	return riffOf("VP8L", w.out)
}

// riffOf is a file of one chunk.
func riffOf(name string, data []byte) []byte {
	file := append([]byte("RIFF\x00\x00\x00\x00WEBP"), name...)
	file = binary.LittleEndian.AppendUint32(file, uint32(len(data)))
	file = append(file, data...)
	if len(data)%2 == 1 {
		file = append(file, 0)
	}
	binary.LittleEndian.PutUint32(file[4:], uint32(len(file)-8))
	return file
}

// TestManyTrees checks that trees are counted, and that none are built beyond the count: a
// file of 0.8 MB may have 70 MB of them.
func TestManyTrees(t *testing.T) {
	for side, refused := range map[int]bool{8: false, 60: true, 204: true} {
		file := manyTrees(side)
		h, err := Read(file)
		if err != nil {
			t.Fatal(err)
		}
		decode := func(bytes, steps int64) (*program.Meter, error) {
			m := program.NewMeter(t.Context(), program.Cost{Working: program.Count(bytes), Steps: program.Count(steps)})
			_, err := Decode(&h, m)
			return m, err
		}
		var m *program.Meter
		took := programtest.Allocated(func() { m, err = decode(math.MaxInt64, math.MaxInt64) })
		if err != nil {
			t.Errorf("%d x %d: %v", side, side, err)
		}
		if _, n := m.Used(); took > n+n/8+programtest.Slack {
			t.Errorf("%d x %d: it allocated %d bytes, and counted %d", side, side, took, n)
		}
		for what, limits := range map[string][2]int64{"bytes": {h.Bytes, math.MaxInt64}, "steps": {math.MaxInt64, h.Steps}} {
			most := min(limits[0], took)
			programtest.Within(t, program.Count(most), func() { _, err = decode(limits[0], limits[1]) })
			if refused != errors.Is(err, program.ErrTooLarge) || !refused && err != nil {
				t.Errorf("%d x %d, held to its %s: %v", side, side, what, err)
			}
		}
		if side < 100 {
			if _, err := library.Decode(bytes.NewReader(file)); err != nil {
				t.Errorf("the library: %v", err)
			}
		}
	}
}

// TestClaims checks that chunks are not larger than their file.
func TestClaims(t *testing.T) {
	lossy := append([]byte("\x10\x00\x00\x9d\x01\x2a\x08\x00\x08\x00"), make([]byte, 40)...)
	file := riffOf("VP8 ", lossy)
	binary.LittleEndian.PutUint32(file[4:], 1<<31-1)
	binary.LittleEndian.PutUint32(file[16:], 1<<27)
	programtest.Within(t, program.Count(0), func() {
		if _, err := Read(file); !errors.Is(err, ErrFormat) {
			t.Errorf("a chunk of 128 MiB in %d bytes: %v", len(file), err)
		}
	})
}

// TestWriteSeed writes the seed that other packages have of manyTrees, where BOWSTRING_UPDATE is set.
func TestWriteSeed(t *testing.T) {
	want := manyTrees(24)
	for _, path := range []string{"../../testdata/hostile/trees.webp",
		"../../../../../internal/hostile/testdata/trees.webp"} {
		if os.Getenv("BOWSTRING_UPDATE") != "" {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is another file (%v); set BOWSTRING_UPDATE to write it", path, err)
		}
	}
}
