package object_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// A range says how far it is, and what it says is there is there, and is right.
func TestProgress(t *testing.T) {
	server, err := objecttest.Start(objecttest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	data := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // never fails
	server.PutObject("b", "key", data)
	b, err := object.Open(t.Context(), server.URL("b"), object.Options{Keys: &object.Keys{ID: "id", Secret: "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	const from = 1000
	buf := make([]byte, len(data)-from)
	last, calls := 0, 0
	ctx := object.WithProgress(t.Context(), func(n int) {
		if n <= last || n > len(buf) {
			t.Errorf("%d bytes are there after %d", n, last)
		} else if !bytes.Equal(buf[last:n], data[from+last:from+n]) {
			t.Errorf("bytes %d to %d are not there", last, n)
		}
		last = n
		calls++
	})
	if err := b.Range(ctx, "key", schema.ObjectVersion{}, from, buf); err != nil {
		t.Fatal(err)
	}
	if calls == 0 || !bytes.Equal(buf, data[from:]) {
		t.Errorf("%d calls", calls)
	}
}
