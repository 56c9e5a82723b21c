package object_test

import (
	"context"
	"testing"

	"bowstring/fetch/object"
)

func TestDirectory(t *testing.T) {
	b, err := object.Open(context.Background(), "file://"+t.TempDir(), object.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	i, o, err := b.Put(context.Background(), "a/b", []byte("hello"), object.Condition{Absent: true})
	if o != object.Made || err != nil {
		t.Fatal(o, err)
	}
	buf := make([]byte, 3)
	if err := b.Range(context.Background(), "a/b", i.Version, 1, buf); err != nil || string(buf) != "ell" {
		t.Fatal(err)
	}
	for i, err := range b.List(context.Background(), object.ListOptions{}) {
		t.Log(i, err)
	}
}
