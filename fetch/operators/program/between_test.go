package program_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"bowstring/fetch/operators/program"
)

// betweens are some that are right, by the bytes that they have.
func betweens() map[string]program.Between {
	out := map[string]program.Between{}
	for _, b := range []program.Between{
		{Kind: program.Image, Type: program.Uint8, Dims: []int{3, 5, 1}},
		{Kind: program.Audio, Type: program.Float32, Dims: []int{2, 7}, Rate: 16000},
		{Kind: program.Audio, Type: program.Float32, Dims: []int{1, 0}, Rate: 8000},
		{Kind: program.Spectrogram, Type: program.Float32, Dims: []int{1, 4, 6}, Rate: 22050},
	} {
		cell := make([]byte, b.Size())
		b.PutHeader(cell)
		out[string(cell)] = b
	}
	return out
}

func TestBetween(t *testing.T) {
	for cell, want := range betweens() {
		got, elements, err := program.ParseBetween([]byte(cell))
		if err != nil || !reflect.DeepEqual(got, want) || len(elements) != len(cell)-program.BetweenHeader {
			t.Errorf("%+v, %d bytes, %v; want %+v", got, len(elements), err, want)
		}
		for i := range program.BetweenHeader { // each byte of a header means something
			if i >= 8 && i < 12 && want.Kind != program.Image {
				continue // any other rate is as right
			}
			if i >= 16 && len(elements) == 0 {
				continue // nothing is nothing, of however many channels
			}
			b := []byte(cell)
			b[i]++
			if got, _, err := program.ParseBetween(b); !errors.Is(err, program.ErrDamaged) {
				t.Errorf("with byte %d changed: %+v, %v", i, got, err)
			}
		}
		for _, n := range []int{0, 4, program.BetweenHeader - 1, len(cell) - 1} {
			if _, _, err := program.ParseBetween([]byte(cell)[:n]); n < len(cell) &&
				!errors.Is(err, program.ErrDamaged) {
				t.Errorf("%d of %d bytes: %v", n, len(cell), err)
			}
		}
	}
}

// FuzzBetween holds that bytes are refused or read as what they were written from.
func FuzzBetween(f *testing.F) {
	for cell := range betweens() {
		f.Add([]byte(cell))
	}
	f.Fuzz(func(t *testing.T, cell []byte) {
		b, elements, err := program.ParseBetween(cell)
		if err != nil {
			if !errors.Is(err, program.ErrDamaged) {
				t.Fatal(err)
			}
			return
		}
		if b.Size() != int64(len(cell)) || len(elements) != len(cell)-program.BetweenHeader {
			t.Fatalf("%+v of %d bytes", b, len(cell))
		}
		again := bytes.Clone(cell)
		b.PutHeader(again)
		if !bytes.Equal(again, cell) {
			t.Fatalf("%x was written as %x", cell[:program.BetweenHeader], again[:program.BetweenHeader])
		}
	})
}
