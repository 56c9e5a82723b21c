package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/flight"
	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// The README lists exactly the third-party files.
func TestVendor(t *testing.T) {
	about, err := os.ReadFile("static/vendor/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"uPlot.iife.min.js", "uPlot.min.css"} {
		b, err := os.ReadFile("static/vendor/" + name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		if want := hex.EncodeToString(sum[:]) + "  " + name; !strings.Contains(string(about), want) {
			t.Errorf("%s is not the file of the README: %s", name, want)
		}
	}
}

// The page stays small and contains nothing that its policy forbids.
func TestAssets(t *testing.T) {
	sum := 0
	for name, a := range assets() {
		sum += len(a.small)
		if a.kind == "" {
			t.Errorf("%s has no type", name)
		}
		if strings.HasPrefix(name, "vendor/") {
			continue
		}
		for _, forbidden := range []string{"innerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://",
			" style=\"", "onclick="} {
			if strings.Contains(string(a.plain), forbidden) {
				t.Errorf("%s has %q", name, forbidden)
			}
		}
	}
	if sum > 100<<10 {
		t.Errorf("the page takes %d bytes compressed, which is more than 100 KiB", sum)
	}
}

// Only images and sounds are sent; the content decides, not the name.
func TestMediaType(t *testing.T) {
	for content, want := range map[string]string{
		"\xff\xd8\xff\xe0\x00\x10JFIF": "image/jpeg", "\x89PNG\r\n\x1a\n": "image/png", "GIF89a": "image/gif",
		"RIFF\x00\x00\x00\x00WEBPVP8 ": "image/webp", "RIFF\x00\x00\x00\x00WAVEfmt ": "audio/wave",
		"OggS\x00": "audio/ogg",
		"fLaC\x00": "audio/flac", "\xff\xfb\x90\x00": "audio/mpeg", "ID3\x03": "audio/mpeg",
		"\x00\x00\x00\x20ftypavif\x00": "image/avif",
		"<!doctype html><script>":      "", "<svg xmlns=\"http://www.w3.org/2000/svg\">": "",
		"<?xml version=\"1.0\"?>": "", "%PDF-1.7": "", "": "", "plain": "",
	} {
		if got := mediaType([]byte(content)); got != want {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
}

// A page of another site may link to the console, but its requests are rejected.
func TestOfOwnPage(t *testing.T) {
	for _, tt := range []struct {
		method, path, site, mode, origin string
		want                             bool
	}{
		{"GET", "/console/api/datasets", "", "", "", true}, // curl
		{"GET", "/console/api/datasets", "same-origin", "cors", "", true},
		{"POST", "/console/api/session", "same-origin", "cors", "http://node7:9815", true},
		{"POST", "/console/api/session", "", "", "http://evil.example", false},
		{"POST", "/console/api/session", "", "", "null", false},
		{"POST", "/console/api/session", "cross-site", "cors", "http://evil.example", false},
		{"GET", "/console/api/blob", "cross-site", "no-cors", "", false},
		{"GET", "/console/api/blob", "same-site", "no-cors", "", false}, // another port of this host
		{"GET", "/console/api/blob", "cross-site", "navigate", "", false},
		{"GET", "/console/", "cross-site", "navigate", "", true},
		{"POST", "/console/", "cross-site", "navigate", "http://evil.example", false},
	} {
		r := httptest.NewRequest(tt.method, "http://node7:9815"+tt.path, nil)
		for name, value := range map[string]string{"Sec-Fetch-Site": tt.site, "Sec-Fetch-Mode": tt.mode,
			"Origin": tt.origin} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		if got := ofOwnPage(r); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// Histograms count each number, however large or small the numbers are.
func TestHistogram(t *testing.T) {
	for name, numbers := range map[string][]float64{
		"one": {7}, "equal": {3, 3, 3}, "few integers": {0, 1, 1, 2, 9}, "many integers": {0, 1, 1000, 999, 12345},
		"fractions": {0.5, 0.25, 100.125}, "negative": {-5, -1, 0}, "huge": {-1e308, 1e308}, "tiny": {5e-324, 1e-323},
	} {
		c := counter{numbers: numbers}
		var s summary
		c.histogram(&s)
		var sum int64
		for _, b := range s.Bins {
			sum += b.Count
		}
		if _, err := json.Marshal(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name == "huge" && s.Bins == nil {
			continue // the range exceeds float64
		}
		if sum != int64(len(numbers)) || len(s.Bins) > maxBins {
			t.Errorf("%s: %d of %d in %d bins: %+v", name, sum, len(numbers), len(s.Bins), s.Bins)
		}
	}
}

// A row with any numbers can be shown, also within structs.
func TestRowOfOddNumbers(t *testing.T) {
	x := arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Float64}
	s := arrow.NewSchema([]arrow.Field{x, {Name: "box", Type: arrow.StructOf(x)}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	if err := b.UnmarshalJSON([]byte(`{"x": "NaN", "box": {"x": "NaN"}}`)); err != nil {
		t.Fatal(err)
	}
	rec := b.NewRecord()
	defer rec.Release()
	got, err := json.Marshal(row(rec, 0))
	if want := `{"x":"NaN","box":{"x":"NaN"}}`; err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// Without sign-in, a new address does not end the session of one with an open page.
func TestAddressesComeAndGo(t *testing.T) {
	c := &Console{opts: Options{Server: &flight.Server{}}, sessions: newSessions(), ctx: t.Context()}
	r := httptest.NewRequest(http.MethodGet, "http://node7:9815/console/api/live", nil)
	var first *session
	for n := range maxSessions + 8 {
		r.RemoteAddr = "[fd00::" + strconv.FormatInt(int64(n), 16) + "]:7"
		s, why := c.viewer(r)
		if why != nil {
			t.Fatalf("address %d: %+v", n, why)
		}
		if first == nil {
			first = s
			s.beginView()
		}
	}
	if len(c.sessions.open) > maxSessions || first.ended.Err() != nil {
		t.Errorf("%d sessions; that which looks: %v", len(c.sessions.open), first.ended.Err())
	}
	c.sessions.close()
	if first.ended.Err() != context.Canceled {
		t.Errorf("the sessions are closed, and one goes on")
	}
}
