package images

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/image/bmp"

	"bowstring/fetch/operators/program"
)

// growing is a list whose images grow beyond the range of int64.
func growing(first string) string {
	list := []string{`{"name":"Decode"}`, first}
	for range 37 {
		list = append(list, `{"name":"RandomRotation","params":{"degrees":45,"expand":true}}`)
	}
	for range 4 {
		list = append(list, `{"name":"Pad","params":{"padding":4096}}`)
	}
	return "[" + strings.Join(list, ",") + "]"
}

// TestGrowing checks that the step that would make too large an image refuses it: when the
// list is compiled if sizes are known, and by the header otherwise.
func TestGrowing(t *testing.T) {
	_, err := Compile(steps(t, growing(`{"name":"Resize","params":{"size":[256,256]}}`)))
	wrong, ok := errors.AsType[*program.StepError](err)
	if !ok || wrong.Name != "RandomRotation" || !strings.Contains(wrong.Reason, "134217728") {
		t.Errorf("%v; want a rotation that is refused, and the limit", err)
	}
	p := compiledOf(t, growing(`{"name":"RandomHorizontalFlip"}`))
	for _, side := range []int{1, 17} {
		cell := blackPNG(t, side, side, 8, 2, 3, false)
		for _, limits := range []program.Limits{{}, program.Ceiling, {Bytes: math.MaxInt64, Steps: math.MaxInt64}} {
			_, err := p.Cost(cell, limits)
			wrong, ok := errors.AsType[*program.StepError](err)
			if !errors.Is(err, program.ErrTooLarge) || !ok || wrong.Step < 10 {
				t.Errorf("%d pixels, %+v: %v", side, limits, err)
			}
		}
		if _, _, err := result(p, cell, program.Draws{}); !errors.Is(err, program.ErrTooLarge) {
			t.Errorf("run: %v", err)
		}
	}
}

// TestRefusedByName checks that a cell that would take too many steps or bytes is refused
// with the step and the limit.
func TestRefusedByName(t *testing.T) {
	p := compiledOf(t, `[{"name":"Decode"},{"name":"RandomVerticalFlip"},
		{"name":"GaussianBlur","params":{"kernel_size":255}}]`)
	cell := blackPNG(t, 600, 600, 8, 2, 3, false)
	cost, err := p.Cost(cell, program.Ceiling)
	if err != nil {
		t.Fatal(err)
	}
	for what, limits := range map[string]program.Limits{
		"steps": {Steps: cost.Steps.Int64() / 2}, "bytes": {Bytes: cost.Working.Int64() / 10 * 9},
	} {
		_, err := p.Cost(cell, limits)
		wrong, ok := errors.AsType[*program.StepError](err)
		limit := fmt.Sprint(limits.Steps + limits.Bytes)
		if !errors.Is(err, program.ErrTooLarge) || !ok || wrong.Name != "GaussianBlur" || wrong.Step != 2 ||
			!strings.Contains(wrong.Reason, what) || !strings.Contains(wrong.Reason, limit) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := p.Cost(cell, program.Limits{Steps: cost.Steps.Int64(), Bytes: cost.Working.Plus(cost.Result).Int64()}); err != nil {
		t.Errorf("what it takes is not enough: %v", err)
	}
}

// ending is a context that ends after a number of checks.
type ending struct {
	context.Context
	checks, after atomic.Int64 // checks until the end, and checks after it
}

func (e *ending) Err() error {
	if e.checks.Add(-1) >= 0 {
		return nil
	}
	e.after.Add(1)
	return context.Canceled
}

// checksOf runs a program with a context that ends after most checks, and returns how many
// checks there were.
func checksOf(p program.Program, cell []byte, most int64) (n int64, err error) {
	ctx := &ending{Context: context.Background()}
	ctx.checks.Store(most)
	_, err = p.Run(ctx, cell, program.Draws{}, func(n int) []byte { return make([]byte, n) })
	return most - max(ctx.checks.Load(), 0), err
}

// manyScans is a progressive file of grey zeros: one scan, and a refinement for each bit below.
func manyScans(side int) []byte {
	file := []byte("\xff\xd8\xff\xdb\x00\x43\x00")
	for range 64 {
		file = append(file, 1)
	}
	file = append(file, "\xff\xc2\x00\x0b\x08"...)
	file = binary.BigEndian.AppendUint16(file, uint16(side))
	file = binary.BigEndian.AppendUint16(file, uint16(side))
	file = append(file, "\x01\x01\x11\x00"...)
	// One code of one bit: no difference.
	file = append(file, "\xff\xc4\x00\x14\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	data := make([]byte, (side/8*side/8+7)/8)
	for low := 13; low >= 0; low-- {
		bits := byte(low+1)<<4 | byte(low)
		if low == 13 {
			bits = 13
		}
		file = append(file, "\xff\xda\x00\x08\x01\x01\x00\x00\x00"...)
		file = append(append(file, bits), data...)
	}
	return append(file, 0xff, 0xd9)
}

// pass is a program and a cell that it has much to do with.
type pass struct {
	p    program.Program
	cell []byte
}

// allPasses are at least one for each kind of work that programs do.
func allPasses(t testing.TB, side int) map[string]pass {
	t.Helper()
	pixels := make([]byte, side*side*3)
	for i := range pixels {
		pixels[i] = byte(i*7>>3) ^ byte(i*i>>11)
	}
	picture := image.NewNRGBA(image.Rect(0, 0, side, side))
	for i := range side * side {
		copy(picture.Pix[4*i:], append(pixels[3*i:3*i+3:3*i+3], 255))
	}
	var plain bytes.Buffer
	if err := bmp.Encode(&plain, picture); err != nil {
		t.Fatal(err)
	}
	of := func(list string) pass {
		return pass{compiledOf(t, `[{"name":"Decode"},`+list+"]"), plain.Bytes()}
	}
	encode := of(`{"name":"EncodeJPEG","params":{"quality":95}}`)
	photo, _, err := result(encode.p, encode.cell, program.Draws{})
	if err != nil {
		t.Fatal(err)
	}
	decode := compiledOf(t, `[{"name":"Decode"}]`)
	strips := tiffFile{width: side, height: side, bits: 8, samples: 3, rows: 16, compression: 8}
	for range side / 16 {
		strips.blocks = append(strips.blocks, deflated(t, pixels[:16*side*3]))
	}
	return map[string]pass{
		"baseline":    {decode, photo},
		"progressive": {decode, manyScans(side)},
		"PNG":         {decode, blackPNG(t, side, side, 8, 2, 3, true)},
		"TIFF":        {decode, strips.bytes()},
		"encode":      encode,
		"blur":        of(`{"name":"GaussianBlur","params":{"kernel_size":3}}`),
		"lanczos":     of(`{"name":"Resize","params":{"size":[300,500],"interpolation":"lanczos"}}`),
		"enlarge":     of(`{"name":"Resize","params":{"size":[3000,2500]}}`),
		"nearest":     of(`{"name":"RandomRotation","params":{"degrees":[20,20],"expand":true}}`),
		"bilinear":    of(`{"name":"RandomRotation","params":{"degrees":[20,20],"interpolation":"bilinear"}}`),
		"a quarter":   of(`{"name":"RandomRotation","params":{"degrees":[90,90]}}`),
		"pad":         of(`{"name":"Pad","params":{"padding":500,"padding_mode":"reflect"}}`),
		"contrast":    of(`{"name":"ColorJitter","params":{"brightness":0.5,"contrast":0.5}}`),
		"hue":         of(`{"name":"ColorJitter","params":{"hue":[0.3,0.4]}}`),
		"saturation":  of(`{"name":"ColorJitter","params":{"saturation":[0.5,0.6]}}`),
		"augment":     of(`{"name":"RandAugment","params":{"num_ops":3}}`),
		"grey":        of(`{"name":"Grayscale","params":{"num_output_channels":3}}`),
		"tensor":      of(`{"name":"ToDtype","params":{"dtype":"float32","scale":true}},{"name":"ToImage"}`),
		"erase a tensor": of(`{"name":"ToDtype","params":{"dtype":"float32"}},
			{"name":"RandomErasing","params":{"p":1,"scale":[0.3,0.3]}}`),
		"erase": of(`{"name":"RandomErasing","params":{"p":1,"scale":[0.3,0.3]}}`),
	}
}

func deflated(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestEnds checks that a run ends with its context in each pass. Contexts end after a number
// of checks, so that the result does not depend on time.
func TestEnds(t *testing.T) {
	for name, c := range allPasses(t, 2048) {
		t.Run(name, func(t *testing.T) {
			all, err := checksOf(c.p, c.cell, math.MaxInt64)
			if err != nil {
				t.Fatal(err)
			}
			cost, err := c.p.Cost(c.cell, program.Ceiling)
			if err != nil {
				t.Fatal(err)
			}
			if all < 2 || all < cost.Steps.Int64()>>24/20 {
				t.Errorf("it looked %d times, and takes %v steps", all, cost.Steps)
			}
			for _, k := range []int64{0, (all + 1) / 2} {
				n, err := checksOf(c.p, c.cell, k)
				if !errors.Is(err, context.Canceled) || errors.Is(err, program.ErrDamaged) {
					t.Errorf("its context ended after %d of %d looks: %v after %d", k, all, err, n)
				}
			}
		})
	}
}
