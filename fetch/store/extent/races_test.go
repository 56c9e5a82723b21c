package extent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/store/extent"
	"bowstring/internal/objecttest"
	"bowstring/internal/rounds"
	"bowstring/schema"
)

// racing is a bucket whose objects change while they are read.
type racing struct {
	// change changes an object, or takes it away. It may be called while the object is read.
	change func(rng *rand.Rand, key string) error
	// restore makes the object what it was, if that can be: a version that comes back is the one that was attached.
	restore func(key string) error
	// may says whether an error that is no schema.ErrDataLoss may come of what happens to the requests.
	may func(error) bool
}

// TestRaces: objects change, go and come back while their blobs are read. A read returns
// the attached bytes, or an error that names the object. No read returns other bytes,
// though no checksum is compared. For blobs attached without checksums the first read
// learns the checksum of the right bytes, whichever of those races it meets.
func TestRaces(t *testing.T) {
	t.Run("directory", func(t *testing.T) {
		dir := t.TempDir()
		put := func(key string, data []byte) error { return os.WriteFile(filepath.Join(dir, key), data, 0o600) }
		race(t, "file://"+dir, false, put, func() *racing {
			return &racing{
				change: func(rng *rand.Rand, key string) error { return changeFile(rng, filepath.Join(dir, key)) },
				may:    func(error) bool { return false },
			}
		})
	})
	for _, lazily := range []bool{false, true} {
		t.Run(map[bool]string{false: "S3", true: "S3, unproven"}[lazily], func(t *testing.T) { raceS3(t, lazily) })
	}
}

func raceS3(t *testing.T, lazily bool) {
	seed := rand.Uint64()
	t.Logf("seed of the server %d", seed)
	server, err := objecttest.Start(objecttest.Config{Seed: seed})
	must(t, err)
	defer func() { must(t, server.Close()) }()
	server.MakeBucket("bucket")
	put := func(key string, data []byte) error {
		server.PutObject("bucket", key, data)
		return nil
	}
	race(t, server.URL("bucket"), lazily, put, func() *racing {
		for _, f := range []objecttest.Fault{
			{Share: 0.02, Short: true}, {Share: 0.02, Whole: true}, {Share: 0.02, Other: true}, {Share: 0.02, Change: true},
			{Share: 0.01, Reset: true}, {Share: 0.01, Status: 503, Code: "SlowDown"},
		} {
			f.Kinds = []objecttest.Kind{objecttest.Get}
			server.Fail(f)
		}
		was := sync.Map{}
		return &racing{
			change: func(rng *rand.Rand, key string) error {
				body, _ := server.Object("bucket", key)
				was.LoadOrStore(key, body)
				switch rng.IntN(4) {
				case 0:
					server.DeleteObject("bucket", key)
				case 1:
					server.PutObject("bucket", key, append([]byte("longer"), body...))
				default:
					server.PutObject("bucket", key, changed(rng, body))
				}
				return nil
			},
			restore: func(key string) error {
				if body, ok := was.Load(key); ok {
					server.PutObject("bucket", key, body.([]byte))
				}
				return nil
			},
			may: func(err error) bool { return errors.Is(err, schema.ErrUnavailable) },
		}
	})
}

// changed are other bytes of the same length.
func changed(rng *rand.Rand, data []byte) []byte {
	data = bytes.Clone(data)
	if len(data) > 0 {
		for range 1 + len(data)/16 {
			data[rng.IntN(len(data))] ^= byte(1 + rng.IntN(255))
		}
	}
	return data
}

// changeFile writes into a file, puts another one in its place, shortens it, or takes it away.
func changeFile(rng *rand.Rand, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	switch other := changed(rng, data); rng.IntN(5) {
	case 0:
		return os.Remove(path)
	case 1:
		return os.Truncate(path, int64(rng.IntN(len(data)+1)))
	case 2:
		if err := os.WriteFile(path+".tmp", other, 0o600); err != nil {
			return err
		}
		return os.Rename(path+".tmp", path)
	case 3:
		return os.WriteFile(path, other, 0o600)
	default:
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		at := rng.IntN(len(data) + 1)
		_, err = f.WriteAt(other[at:], int64(at))
		return errors.Join(err, f.Close())
	}
}

// attached is a blob as it was attached, and the key of its object.
type attached struct {
	lying
	key string
}

func race(t *testing.T, url string, lazily bool, put func(key string, data []byte) error, begin func() *racing) {
	n := rounds.Count(500, 5000) // objects that are changed while they are read
	if testing.Short() {
		n = 250
	}
	rng := random(t)
	ctx := t.Context()
	bucket, err := object.Open(ctx, url, object.Options{Keys: &object.Keys{ID: "id", Secret: "secret"}})
	must(t, err)
	defer func() { must(t, bucket.Close()) }()
	// Objects with two blobs each, one of which is nearly all of it.
	set := schema.ObjectSet{Bucket: bucket.URL(), Unproven: lazily}
	contents := make([][]byte, n)
	for i := range contents {
		data := make([]byte, 64+rng.IntN(12_000))
		for j := range data {
			data[j] = byte(rng.Uint32())
		}
		contents[i] = data
		key := fmt.Sprintf("%05d", i)
		must(t, put(key, data))
		info, err := bucket.Stat(ctx, key)
		must(t, err)
		set.Objects = append(set.Objects, schema.Object{Key: key, Size: info.Size, Version: info.Version})
	}
	var all []attached
	prefix := set.Prefix()
	for i, data := range contents {
		for _, from := range []int{0, len(data) / 2} {
			blob := data[from : from+len(data)/2]
			sum := schema.Checksum(blob)
			address := schema.ObjectAddress{Prefix: prefix, Object: uint32(i), Offset: int64(from)}
			ref := schema.BlobRef{Key: address.Key(sum), Size: int64(len(blob)), Sum: sum}
			if lazily {
				ref = schema.UnprovenRef(address, ref.Size)
			}
			all = append(all, attached{lying{ref, blob}, set.Objects[i].Key})
		}
	}
	m := &made{set: set}
	for _, a := range all {
		m.blobs = append(m.blobs, a.lying)
	}
	s := extent.New(openLocal(t, filepath.Join(t.TempDir(), "store")), extent.Options{
		Buckets: func(ctx context.Context, url string) (object.Bucket, error) {
			return object.Open(ctx, url, object.Options{Keys: &object.Keys{ID: "id", Secret: "secret"}})
		}})
	defer func() { must(t, s.Close()) }()
	m.attach(t, s, "d")
	// The clock by which a file's time of change goes has to have moved on.
	time.Sleep(20 * time.Millisecond)
	r := begin()

	var reads, right, refused, wrong atomic.Int64
	read := func(a attached) {
		reads.Add(1)
		blob, err := s.Get(ctx, a.ref)
		if err == nil && lazily {
			if _, err = s.Prove(ctx, a.ref, blob.Bytes()); err != nil { // it never had other bytes
				t.Errorf("object %s: %v", a.key, err)
			}
			if ref := s.Proven(a.ref); ref.Sum != schema.Checksum(a.data) {
				wrong.Add(1)
			}
		}
		switch {
		case err == nil:
			right.Add(1)
			if !bytes.Equal(blob.Bytes(), a.data) {
				wrong.Add(1)
			}
			blob.Release()
		case errors.Is(err, schema.ErrDataLoss) && strings.Contains(err.Error(), a.key), r.may(err):
			refused.Add(1)
		default:
			t.Errorf("object %s: %v", a.key, err)
		}
	}
	const workers = 8
	var running sync.WaitGroup
	for w := range workers {
		own := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
		running.Go(func() {
			for i := w; i < n; i += workers {
				one, two := all[2*i], all[2*i+1]
				var both sync.WaitGroup
				both.Go(func() { read(one); read(two); read(one) })
				both.Go(func() {
					time.Sleep(time.Duration(own.IntN(400)) * time.Microsecond) // before, while or after it is read
					if err := r.change(own, one.key); err != nil {
						t.Error(err)
					}
				})
				both.Wait()
				read(two)
				if r.restore != nil && i%2 == 0 {
					if err := r.restore(one.key); err != nil {
						t.Error(err)
					}
					read(one)
				}
			}
		})
	}
	running.Wait()
	t.Logf("races %d, reads %d, right %d, refused %d, wrong %d", n, reads.Load(), right.Load(), refused.Load(), wrong.Load())
	if wrong.Load() > 0 || right.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d of %d reads brought other bytes", wrong.Load(), reads.Load())
	}
}
