package spill

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"bowstring/schema"
	"bowstring/spill/segment"
)

func TestVerify(t *testing.T) {
	dir := t.TempDir()
	options := Options{Dir: dir, Bytes: 64 << 20, KeepFree: 1}
	c, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	var refs []schema.BlobRef
	for i := range 20 {
		data := []byte(fmt.Sprint("blob number ", i))
		refs = append(refs, schema.RefOf(data))
		if !c.Put(refs[i], Place{}, 0, data) {
			t.Fatal("not stored")
		}
	}
	if v := c.Verify(t.Context()); v.Blobs != 20 || v.Damaged != 0 {
		t.Errorf("found %+v", v)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ids, err := segment.List(filepath.Join(dir, blobsDir))
	if err != nil {
		t.Fatal(err)
	}
	flipped := 0
	for _, id := range ids {
		path := filepath.Join(dir, blobsDir, segment.FileName(id))
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := range data {
			if schema.Checksum(data[at:min(at+13, len(data))]) == refs[3].Sum {
				data[at] ^= 1
				flipped++
			}
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if flipped != 1 {
		t.Fatalf("%d bits were flipped", flipped)
	}
	if c, err = Open(options); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if v := c.Verify(t.Context()); v.Blobs != 20 || v.Damaged != 1 {
		t.Errorf("found %+v", v)
	}
	if v := c.Verify(t.Context()); v.Blobs != 19 || v.Damaged != 0 || c.Has(refs[3]) || !c.Has(refs[4]) {
		t.Errorf("found after that %+v", v)
	}
}
