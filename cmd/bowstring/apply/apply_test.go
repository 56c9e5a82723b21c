package apply_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"bowstring/cmd/bowstring/apply"
	"bowstring/fetch"
	"bowstring/internal/operatorstest"
	"bowstring/schema"
)

func options() apply.Options {
	return apply.Options{Kinds: operatorstest.Kinds(), Logger: slog.New(slog.DiscardHandler)}
}

// frame is a header and its body.
func frame(header, body string) string {
	return string(binary.LittleEndian.AppendUint32(nil, uint32(len(header)))) + header + body
}

// split reads the header of the first frame, and what follows.
func split(t *testing.T, b []byte) (header string, rest []byte) {
	t.Helper()
	if len(b) < 4 {
		t.Fatalf("%q is no frame", b)
	}
	n := binary.LittleEndian.Uint32(b)
	return string(b[4 : 4+n]), b[4+n:]
}

func positions(p ...int64) string {
	var b []byte
	for _, n := range p {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return string(b)
}

const hello = `{"operators":{"image":{"kind":"image","contract":"test/1","steps":[{"Decode":{}},{"Crop":{"size":4}}]}},"seed":7}`

// run answers the frames after the first.
func run(t *testing.T, frames ...string) ([]byte, error) {
	t.Helper()
	var out bytes.Buffer
	err := apply.Run(t.Context(), strings.NewReader(strings.Join(frames, "")), &out, options())
	return out.Bytes(), err
}

// Batches are answered in the order they came. A null stays a null, what cannot be made is a
// fault and a null, and both have zeros in the place of a tensor.
func TestBatches(t *testing.T) {
	whole := "content of a cell"
	body := positions(5, 6, 7) + whole + "bad one"
	sizes, err := json.Marshal([]int{len(whole), -1, len("bad one")})
	if err != nil {
		t.Fatal(err)
	}
	batch := frame(`{"epoch":2,"rows":3,"columns":[{"name":"image","sizes":`+string(sizes)+`}]}`, body)
	empty := frame(`{"epoch":2,"rows":0,"columns":[{"name":"image","sizes":[]}]}`, "")
	out, err := run(t, frame(hello, ""), batch, empty, batch)
	if err != nil {
		t.Fatal(err)
	}
	welcome, out := split(t, out)
	if !strings.Contains(welcome, `"forms":{"image"`) {
		t.Errorf("the first answer is %s", welcome)
	}
	for i, rows := range []int{3, 0, 3} {
		var header string
		header, out = split(t, out)
		var got struct {
			Columns []struct {
				Bytes int
				Sizes []int64
			}
			Faults []struct {
				Row      int
				Position int64
				Code     string
			}
		}
		if err := json.Unmarshal([]byte(header), &got); err != nil {
			t.Fatal(err)
		}
		c := got.Columns[0]
		if len(c.Sizes) != rows || c.Bytes != 4*rows {
			t.Fatalf("batch %d: %s", i, header)
		}
		made := out[:c.Bytes]
		out = out[c.Bytes:]
		if rows == 0 {
			continue
		}
		if c.Sizes[0] != 4 || c.Sizes[1] != -1 || c.Sizes[2] != -1 || !bytes.Equal(made[4:], make([]byte, 8)) {
			t.Errorf("batch %d: %s %v", i, header, made)
		}
		if len(got.Faults) != 1 || got.Faults[0].Row != 2 || got.Faults[0].Position != 7 || got.Faults[0].Code != "DATA_LOSS" {
			t.Errorf("batch %d: %s", i, header)
		}
	}
	if len(out) != 0 {
		t.Errorf("%d bytes are left", len(out))
	}
}

// Frames that are not understood are answered by what is wrong with them.
func TestWrongFrames(t *testing.T) {
	for name, test := range map[string]struct{ frames, want string }{
		"no list":        {frame(`{}`, ""), "written in full"},
		"short list":     {frame(`{"operators":{"image":[{"Decode":{}}]}}`, ""), "written in full"},
		"other contract": {frame(strings.Replace(hello, "test/1", "test/9", 1), ""), `got \"test/9\"`},
		"no JSON":        {frame(`{`, ""), "a header"},
		"huge header":    {"\xff\xff\xff\xff", "a header of 4294967295 bytes"},
		"cut header":     {frame(hello, "") + "\x09\x00\x00\x00{", "breaks off"},
		"cut length":     {frame(hello, "") + "\x09\x00", "breaks off"},
		"cut body":       {frame(hello, "") + frame(`{"rows":1,"columns":[{"name":"image","sizes":[9]}]}`, "x"), "breaks off"},
		"many rows":      {frame(hello, "") + frame(`{"rows":9000000000}`, ""), "rows: got"},
		"negative rows":  {frame(hello, "") + frame(`{"rows":-1}`, ""), "rows: got -1"},
		"few sizes":      {frame(hello, "") + frame(`{"rows":1,"columns":[{"name":"image","sizes":[]}]}`, ""), "0 sizes"},
		"other column":   {frame(hello, "") + frame(`{"rows":1,"columns":[{"name":"x","sizes":[1]}]}`, ""), "of one that has operators"},
		"huge blob":      {frame(hello, "") + frame(`{"rows":1,"columns":[{"name":"image","sizes":[9000000000000000000]}]}`, ""), "a blob of"},
		"one byte more than offsets of 32 bits reach": {frame(hello, "") + frame(
			`{"rows":3,"columns":[{"name":"image","sizes":[1073741824,1073741800,0]}]}`, ""), "a batch of more than 2147483647"},
		"negative blob": {frame(hello, "") + frame(`{"rows":1,"columns":[{"name":"image","sizes":[-2]}]}`, ""), "a blob of -2"},
	} {
		out, err := run(t, test.frames)
		if err == nil || !bytes.Contains(out, []byte(test.want)) || !bytes.Contains(out, []byte(`"error"`)) {
			t.Errorf("%s: %v, answered %.300q, want %s", name, err, out, test.want)
		}
	}
	if out, err := run(t); err != nil || len(out) != 0 {
		t.Errorf("without a frame: %v, %q", err, out)
	}
}

// The size of the cells counts, the size that they could have had does not. Where it is too much,
// the batch is refused by that, no cell of it is at fault, and the next batch is made.
func TestTooMuch(t *testing.T) {
	const most = 1000
	hello := strings.Replace(hello, `{"Crop":{"size":4}}`, `{"RandomRepeat":{}},{"Encode":{}}`, 1)
	ask := func(rows, size int) string {
		body := positions(make([]int64, rows)...) + strings.Repeat("x", rows*size)
		sizes := strings.TrimSuffix(strings.Repeat(strconv.Itoa(size)+",", rows), ",")
		return frame(fmt.Sprintf(`{"rows":%d,"columns":[{"name":"image","sizes":[%s]}]}`, rows, sizes), body)
	}
	opts := options()
	opts.MaxBytes = most
	// Position 0 draws the same number for each row. The largest possible size of 8 rows exceeds the bound.
	var times int
	for _, size := range []int{1, 40, 80, 1} {
		var out bytes.Buffer
		in := frame(hello, "") + ask(8, size) + ask(1, 1)
		if err := apply.Run(t.Context(), strings.NewReader(in), &out, opts); err != nil {
			t.Fatal(err)
		}
		_, rest := split(t, out.Bytes())
		for _, rows := range []int{8, 1} {
			var header string
			header, rest = split(t, rest)
			var got struct {
				Columns []struct{ Bytes int }
				Faults  []any
				Code    string
			}
			if err := json.Unmarshal([]byte(header), &got); err != nil {
				t.Fatal(err)
			}
			if rows == 1 {
				size = 1
			}
			if times == 0 {
				times = got.Columns[0].Bytes / 8
			}
			if len(got.Faults) > 0 {
				t.Errorf("%d rows of %d bytes: cells are at fault: %s", rows, size, header)
			}
			if want := rows * size * times; want > most {
				if got.Code != "RESOURCE_EXHAUSTED" {
					t.Errorf("%d rows of %d bytes, made %d times: %s", rows, size, times, header)
				}
			} else if len(got.Columns) != 1 || got.Columns[0].Bytes != want {
				t.Errorf("%d rows of %d bytes: %s, want %d bytes", rows, size, header, want)
			} else {
				rest = rest[want:]
			}
		}
	}
	if times != 2 && times != 3 {
		t.Errorf("%d times: with the seed, want 2 or 3, which are between the real and the largest size", times)
	}
	opts.MaxBytes = 1 << 31
	if err := apply.Run(t.Context(), strings.NewReader(""), io.Discard, opts); err == nil {
		t.Error("a bound that offsets do not reach is taken")
	}
}

// A body that is refused is read to its end: the client reads the answers to earlier
// batches after it has written the body, and pipes hold less than either.
func TestRefusedBodyIsRead(t *testing.T) {
	in, to := io.Pipe()
	from, out := io.Pipe()
	opts := options()
	opts.MaxBytes = 10_000
	ended := make(chan error, 1)
	go func() { ended <- apply.Run(t.Context(), in, out, opts); _ = out.Close() }()
	write := func(frame string) {
		t.Helper()
		if _, err := io.WriteString(to, frame); err != nil {
			t.Fatal(err)
		}
	}
	batch := frame(`{"rows":1,"columns":[{"name":"image","sizes":[7]}]}`, positions(1)+"content")
	write(frame(hello, ""))
	var prefix [4]byte
	if _, err := io.ReadFull(from, prefix[:]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, from, int64(binary.LittleEndian.Uint32(prefix[:]))); err != nil {
		t.Fatal(err)
	}
	write(batch)
	write(batch)
	large := strings.Repeat("x", 1<<20)
	write(frame(fmt.Sprintf(`{"rows":1,"columns":[{"name":"image","sizes":[%d]}]}`, len(large)), positions(2)+large))
	write(batch) // which is not answered
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	answers, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var header string
		header, answers = split(t, answers)
		if !strings.Contains(header, `"bytes":4`) {
			t.Errorf("a batch before it: %s", header)
		}
		answers = answers[4:]
	}
	header, answers := split(t, answers)
	if !strings.Contains(header, "a batch of more than 10000 bytes") || !strings.Contains(header, "RESOURCE_EXHAUSTED") ||
		len(answers) != 0 {
		t.Errorf("%s, and %d bytes", header, len(answers))
	}
	if err := <-ended; !errors.Is(err, schema.ErrLimit) {
		t.Error(err)
	}
}

// gone is a reader that went away.
type gone struct{ left int }

func (g *gone) Write(b []byte) (int, error) {
	if g.left -= len(b); g.left < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

// When the client stops reading, Run ends.
func TestReaderGone(t *testing.T) {
	whole := "content"
	sizes, _ := json.Marshal([]int{len(whole)})
	batch := frame(`{"rows":1,"columns":[{"name":"image","sizes":`+string(sizes)+`}]}`, positions(1)+whole)
	in := frame(hello, "") + strings.Repeat(batch, 100)
	err := apply.Run(t.Context(), strings.NewReader(in), &gone{left: 2000}, options())
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("it ended with %v", err)
	}
}

// Whatever comes, nothing but an answer or an error comes of it.
func FuzzRun(f *testing.F) {
	f.Add([]byte(frame(hello, "")))
	f.Add([]byte(frame(hello, "") + frame(`{"rows":1,"columns":[{"name":"image","sizes":[3]}]}`, positions(1)+"abc")))
	opts := apply.Options{Kinds: fetch.OperatorKinds(), Logger: slog.New(slog.DiscardHandler)}
	f.Fuzz(func(t *testing.T, in []byte) {
		_ = apply.Run(t.Context(), bytes.NewReader(in), io.Discard, opts)
	})
}
