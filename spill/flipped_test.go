package spill

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// TestFlippedBits flips a bit somewhere in the files of a cache: in those of blobs while it is open, in any while it is
// not. Whatever it hits, nothing wrong is read, and the cache opens and is of use.
func TestFlippedBits(t *testing.T) {
	r := testRand(t)
	const blobs = 12
	var data [blobs + 1][]byte
	var refs [blobs + 1]schema.BlobRef
	for i := range data {
		data[i], refs[i] = fill(r, 1000+r.IntN(8000))
	}
	// right returns how many are there, and requires that these are right.
	right := func(c *Cache) (n int) {
		for i := range data {
			b, ok := c.Get(refs[i], Place{})
			if ok {
				n++
			}
			if ok && string(b.Bytes()) != string(data[i]) {
				t.Fatal("wrong bytes")
			}
			b.Release()
		}
		return n
	}
	opts := testOptions(t.TempDir())
	c := openCache(t, opts)
	for i := range blobs {
		c.Put(refs[i], Place{}, 1e6, data[i])
	}
	live, closed := 800, 200
	if testing.Short() {
		live, closed = 100, 20
	}
	for k := range live {
		i := r.IntN(blobs)
		_, s := c.table.find(&refs[i].Key)
		at := s.location()
		flipBit(t, filepath.Join(c.path(blobsDir), segment.FileName(at.Segment)), 8*at.Offset+r.Int64N(8*at.Length))
		if n := right(c); n != blobs-1 || c.Stats().Damaged != int64(k+1) {
			t.Fatalf("a bit of a blob was flipped, and %d of %d are there, %d were found damaged in %d flips", n, blobs,
				c.Stats().Damaged, k+1)
		}
		if !c.Put(refs[i], Place{}, 1e6, data[i]) {
			t.Fatal("the blob was not stored again")
		}
	}
	closeCache(t, c)

	all, files := filesOf(t, opts.Dir)
	copied := filepath.Join(t.TempDir(), "copy")
	anew := 0
	for k := range closed {
		if err := errors.Join(os.RemoveAll(copied), os.CopyFS(copied, os.DirFS(opts.Dir))); err != nil {
			t.Fatal(err)
		}
		from := all
		if k%4 == 0 {
			from = files
		}
		path, bit := flip(t, r, from, copied)
		flipped := opts
		flipped.Dir = copied
		c, err := Open(flipped)
		if err != nil {
			t.Fatalf("bit %d of %s: %v", bit, path, err)
		}
		if right(c) == 0 {
			anew++
		}
		c.Put(refs[blobs], Place{}, 1e6, data[blobs])
		if right(c) == 0 {
			t.Errorf("bit %d of %s: what is stored is not there", bit, path)
		}
		closeCache(t, c)
	}
	t.Logf("after %d times of %d all began anew", anew, closed)
}

// filesOf lists the files of a cache that are not empty, by their paths in its directory, and those of blobs among
// them.
func filesOf(t *testing.T, dir string) (all, blobs []string) {
	t.Helper()
	if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Size() == 0 {
			return err
		}
		all = append(all, path)
		if filepath.Dir(path) == blobsDir {
			blobs = append(blobs, path)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all, blobs
}

// flip flips a bit of one of the files.
func flip(t *testing.T, r *rand.Rand, files []string, dir string) (path string, bit int64) {
	t.Helper()
	path = filepath.Join(dir, files[r.IntN(len(files))])
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	bit = r.Int64N(8 * info.Size())
	flipBit(t, path, bit)
	return path, bit
}

func flipBit(t *testing.T, path string, bit int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], bit/8)
	b[0] ^= 1 << (bit % 8)
	if err == nil {
		_, err = f.WriteAt(b[:], bit/8)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}
