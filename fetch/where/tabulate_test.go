package where

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestTabulate(t *testing.T) {
	for text, want := range map[string]func(n float64) float64{
		"len ** 2 + 1000 * len": func(n float64) float64 { return n*n + 1000*n },
		"len * len":             func(n float64) float64 { return n * n },
		"0.5":                   func(float64) float64 { return 0.5 },
		"len > 100 ? 7 : 2.5": func(n float64) float64 {
			if n > 100 {
				return 7
			}
			return 2.5
		},
		"len >= 4096": func(n float64) float64 {
			if n >= 4096 {
				return 1
			}
			return 0
		},
		"max(len, 10)": func(n float64) float64 { return max(n, 10) },
	} {
		turns := 0
		got, err := Tabulate(t.Context(), "len", "pack.balance.cost", text, 10_000, func(_ context.Context, f func() error) error {
			turns++
			return f()
		})
		if err != nil || len(got) != 10_001 {
			t.Fatalf("%s: %d values, %v", text, len(got), err)
		}
		for n, v := range got {
			if v != want(float64(n)) {
				t.Fatalf("%s: %v for %d, want %v", text, v, n, want(float64(n)))
			}
		}
		if turns < 3 {
			t.Errorf("%s: %d turns", text, turns)
		}
	}
}

func TestTabulateErrors(t *testing.T) {
	for text, want := range map[string]string{
		"length":           "length",
		"len + position":   `"position"`,
		"split":            "",
		"string(len)":      "number",
		"100 % (len - 50)": "len = 50",
		"len ? 1 : 2":      "",
		"(":                "",
	} {
		_, err := Tabulate(t.Context(), "len", "pack.balance.cost", text, 100, now)
		var e *Error
		if !errors.As(err, &e) || e.Field != "pack.balance.cost" || !strings.Contains(e.Error(), want) {
			t.Errorf("%s: %v, want an error of pack.balance.cost with %q", text, err, want)
		}
	}
	stop := errors.New("stop")
	if _, err := Tabulate(t.Context(), "len", "x", "len", 100, func(context.Context, func() error) error {
		return stop
	}); !errors.Is(err, stop) {
		t.Errorf("a turn that fails: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := Tabulate(ctx, "len", "x", "len", 100, now); !errors.Is(err, stop) {
		t.Errorf("a context that has ended: %v", err)
	}
}
