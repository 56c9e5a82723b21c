package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFileClock requires that a clock follows its file, and stays as it is while the file
// cannot be read.
func TestFileClock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clock")
	c := &fileClock{path: path}
	if err := c.read(); err == nil {
		t.Fatal("a clock without its file begins")
	}
	wrong := func(want time.Duration) {
		t.Helper()
		c.next = time.Time{} // the second is over
		before := time.Now()
		got := c.Now()
		after := time.Now()
		if got.Before(before.Round(0).Add(want)) || got.After(after.Round(0).Add(want)) {
			t.Fatalf("the clock is wrong by %s, want %s", got.Sub(before), want)
		}
	}
	for _, s := range []struct {
		text string
		want time.Duration
	}{
		{"90s\n", 90 * time.Second},
		{"-1m30s", -90 * time.Second},
		{"not a duration", -90 * time.Second},
		{"0", 0},
	} {
		if err := os.WriteFile(path, []byte(s.text), 0o600); err != nil {
			t.Fatal(err)
		}
		wrong(s.want)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wrong(0)
	right := &fileClock{}
	if now := right.Now(); time.Since(now) > time.Minute || right.read() != nil {
		t.Fatalf("a clock without a path says %s", now)
	}
}
