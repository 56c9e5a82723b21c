package program_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"testing"

	"bowstring/fetch/operators/program"
)

func granted(steps, working int64) program.Cost {
	return program.Cost{Steps: program.Count(steps), Working: program.Count(working)}
}

// TestMeterSteps holds that a run may take as many steps as were granted, and no more.
func TestMeterSteps(t *testing.T) {
	m := program.NewMeter(t.Context(), granted(100, 0))
	for range 10 {
		if err := m.Spend(10); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Spend(1); !errors.Is(err, program.ErrTooLarge) {
		t.Errorf("101 steps of 100: %v", err)
	}
	if err := m.Check(); !errors.Is(err, program.ErrTooLarge) {
		t.Errorf("the failure has not stayed: %v", err)
	}
	for _, steps := range []int64{math.MaxInt64, -1} {
		m := program.NewMeter(t.Context(), granted(math.MaxInt64-1, 0))
		if err := errors.Join(m.Spend(5), m.Spend(steps)); !errors.Is(err, program.ErrTooLarge) {
			t.Errorf("5 and %d steps: %v", steps, err)
		}
	}
	if steps, _ := m.Used(); steps != 101 {
		t.Errorf("%d steps were counted; want 101", steps)
	}
}

// TestMeterContext holds that a run learns within 2^24 steps that its context has ended.
func TestMeterContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the stream has ended")
	m := program.NewMeter(ctx, granted(1<<40, 0))
	if err := m.Spend(1 << 20); err != nil {
		t.Fatal(err)
	}
	cancel(why)
	spent := int64(0)
	for m.Spend(1<<16) == nil {
		if spent += 1 << 16; spent > 1<<24 {
			t.Fatalf("%d steps after the end", spent)
		}
	}
	if err := m.Spend(0); !errors.Is(err, why) {
		t.Errorf("%v; want the cause", err)
	}
	if n, err := m.Reader(bytes.NewReader([]byte("abc"))).Read(make([]byte, 3)); n != 0 || !errors.Is(err, why) {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

// TestMeterBytes holds that a run works in no more bytes at once than were granted.
func TestMeterBytes(t *testing.T) {
	m := program.NewMeter(t.Context(), granted(0, 100))
	if err := m.Hold(60); err != nil {
		t.Fatal(err)
	}
	m.Free(60)
	if err := errors.Join(m.Hold(70), m.Hold(30)); err != nil {
		t.Fatal(err)
	}
	if _, most := m.Used(); most != 100 {
		t.Errorf("%d bytes were held; want 100", most)
	}
	for _, n := range []int64{1, -1, math.MaxInt64} {
		m := program.NewMeter(t.Context(), granted(0, 100))
		if err := errors.Join(m.Hold(100), m.Hold(n)); !errors.Is(err, program.ErrTooLarge) {
			t.Errorf("100 and %d bytes: %v", n, err)
		}
	}
}

// TestNoMeter holds that without a meter everything is allowed.
func TestNoMeter(t *testing.T) {
	var m *program.Meter
	m.Free(1)
	if err := errors.Join(m.Spend(math.MaxInt64), m.Hold(math.MaxInt64), m.Check()); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(m.Reader(bytes.NewReader([]byte("abc")))); err != nil || string(b) != "abc" {
		t.Errorf("%q, %v", b, err)
	}
}
