package vorbis

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestTransform compares with the sums that the inverse MDCT is defined by.
func TestTransform(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for m := 32; m <= 4096; m *= 2 {
		x := make([]float32, m)
		for i := range x {
			x[i] = r.Float32() - 0.5
		}
		got := append([]float32(nil), x...)
		transformOf(m).run(got, make([]point, m/2))
		signal, noise := 0.0, 0.0
		for i := 0; i < m; i += 1 + m/64 {
			want := 0.0
			for k, v := range x {
				want += float64(v) * math.Cos(math.Pi/float64(m)*(float64(i)+0.5)*(float64(k)+0.5))
			}
			d := want - float64(got[i])
			signal, noise = signal+want*want, noise+d*d
		}
		if db := 10 * math.Log10(signal/noise); db < 125 {
			t.Errorf("of %d numbers: %.1f dB", m, db)
		}
	}
}

// TestWindow checks that the squares of a window and of its mirror image sum to 1.
func TestWindow(t *testing.T) {
	w := transformOf(1024).window
	for i, v := range w {
		if u := w[len(w)-1-i]; math.Abs(float64(v)*float64(v)+float64(u)*float64(u)-1) > 1e-6 {
			t.Fatalf("at %d it is %g, and %g at its mirror", i, v, u)
		}
	}
}

func TestWords(t *testing.T) {
	for name, c := range map[string]struct {
		lengths []uint8
		why     string
	}{
		"whole":            {[]uint8{2, 4, 4, 4, 4, 2, 3, 3}, ""}, // the example of section 3.2.1
		"unused entries":   {[]uint8{1, 0, 2, 0, 2}, ""},
		"long":             {[]uint8{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12}, ""},
		"no word":          {[]uint8{0, 0}, ""},
		"one word":         {[]uint8{0, 1}, ""},
		"one of two bits":  {[]uint8{0, 2}, "one word is longer"},
		"too many":         {[]uint8{1, 1, 1}, "more words"},
		"too many, longer": {[]uint8{1, 2, 1}, "more words"},
		"too few":          {[]uint8{1, 2}, "fewer words"},
	} {
		b := &codebook{dims: 1, lengths: c.lengths}
		for _, l := range c.lengths {
			b.used += int(min(l, 1))
		}
		if why := b.build(); c.why == "" && why != "" || !strings.Contains(why, c.why) {
			t.Errorf("%s: %q, want %q", name, why, c.why)
		}
	}
	b := &codebook{dims: 1, used: 8, lengths: []uint8{2, 4, 4, 4, 4, 2, 3, 3}}
	if why := b.build(); why != "" {
		t.Fatal(why)
	}
	// Words begin with their highest bit: 00, 0100 to 0111, 10, 110, 111.
	r := &bitReader{data: []byte{0b0010_0000}}
	for _, want := range []int{0, 0, 1} {
		if got := b.decode(r); got != want {
			t.Fatalf("entry %d, want %d", got, want)
		}
	}
}

// TestWorking checks that decoding allocates no more than Working.
func TestWorking(t *testing.T) {
	for _, name := range files(t) {
		file := load(t, name)
		out := make([][]float32, file[39])
		for c := range out {
			out[c] = make([]float32, 9000)
		}
		if _, err := Decode(nil, file, 0, out); err != nil { // also makes the tables that are made once
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Decode(nil, file, 0, out); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if n, most := int64(after.TotalAlloc-before.TotalAlloc), Working(len(out))+int64(len(file)); n > most {
			t.Errorf("%s: %d bytes, at most %d are said", name, n, most)
		} else {
			t.Logf("%s: %d bytes of %d", name, n, most)
		}
	}
}
