package object_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/internal/authtest"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// secret keys, which may be in no error.
var testKeys = object.Keys{ID: "AKIDGIVEN", Secret: "v3ry-s3cr3t-k3y", Token: "v3ry-s3cr3t-t0k3n"}

// faulty is a bucket at a server that fails.
type faulty struct {
	*testing.T

	s       *objecttest.Server
	b       object.Bucket
	version schema.ObjectVersion
	data    []byte
}

func newFaulty(t *testing.T, cfg objecttest.Config) *faulty {
	t.Helper()
	s := start(t, cfg)
	f := &faulty{T: t, s: s, b: open(t, s.URL("bucket"), object.Options{Keys: &testKeys}),
		data: bytes.Repeat([]byte("0123456789"), 2000)}
	f.version = s.PutObject("bucket", "dir/key", f.data)
	return f
}

func (f *faulty) read() error {
	buf := make([]byte, 5000)
	err := f.b.Range(context.Background(), "dir/key", f.version, 5, buf)
	if err == nil && !bytes.Equal(buf, f.data[5:5005]) {
		f.Fatal("Range has other bytes")
	}
	return err
}

func (f *faulty) put(c object.Condition) (object.Outcome, error) {
	_, outcome, err := f.b.Put(context.Background(), "dir/new", []byte("new"), c)
	return outcome, err
}

func (f *faulty) want(what string, err, kind error) {
	f.Helper()
	if !errors.Is(err, kind) {
		f.Fatalf("%s: error %v, want %v", what, err, kind)
	}
	noSecret(f.T, err)
}

func noSecret(t *testing.T, err error) {
	t.Helper()
	for _, format := range []string{"%v", "%+v", "%#v"} {
		if text := fmt.Sprintf(format, err); strings.Contains(text, "s3cr3t") {
			t.Fatalf("an error has a secret: %s", text)
		}
	}
}

// Each fault is what it is called, at each kind of call, and passes.
func TestFaults(t *testing.T) {
	slow := objecttest.SlowDown()
	slow.Header = http.Header{"Retry-After": {"7"}}
	for _, c := range []struct {
		name    string
		fault   objecttest.Fault
		read    error // of Range, and of Get unless whole is set
		whole   error // of Get
		stat    error
		list    error
		outcome object.Outcome
	}{
		{"503", slow, schema.ErrUnavailable, schema.ErrUnavailable, schema.ErrUnavailable, schema.ErrUnavailable,
			object.Uncertain},
		{"429", objecttest.Fault{Status: 429, Code: "TooManyRequests"}, schema.ErrUnavailable, schema.ErrUnavailable,
			schema.ErrUnavailable,
			schema.ErrUnavailable, object.Failed},
		{"500", objecttest.Fault{Status: 500, Code: "InternalError"}, schema.ErrUnavailable, schema.ErrUnavailable,
			schema.ErrUnavailable,
			schema.ErrUnavailable, object.Uncertain},
		{"409", objecttest.Fault{Status: 409, Code: "ConditionalRequestConflict", Kinds: []objecttest.Kind{objecttest.Put}},
			nil, nil, nil, nil,
			object.Uncertain},
		{"403", objecttest.Fault{Status: 403, Code: "AccessDenied"}, schema.ErrDenied, schema.ErrDenied, schema.ErrDenied,
			schema.ErrDenied,
			object.Failed},
		{"archived", objecttest.Fault{Status: 403, Code: "InvalidObjectState", Kinds: []objecttest.Kind{objecttest.Get}},
			schema.ErrNotSupported, schema.ErrNotSupported, nil, nil, object.Made},
		{"customer's key", objecttest.Fault{Status: 400, Code: "InvalidRequest", Kinds: []objecttest.Kind{objecttest.Get},
			Message: "The object was stored using a form of Server Side Encryption. The correct parameters must be provided."},
			schema.ErrNotSupported, schema.ErrNotSupported, nil, nil, object.Made},
		{"501", objecttest.Fault{Status: 501, Code: "NotImplemented", Kinds: []objecttest.Kind{objecttest.Put}}, nil, nil,
			nil, nil,
			object.Failed},
		{"short", objecttest.Fault{Short: true}, schema.ErrUnavailable, schema.ErrUnavailable, nil, schema.ErrUnavailable,
			object.Made},
		{"reset", objecttest.Fault{Reset: true}, schema.ErrUnavailable, schema.ErrUnavailable, schema.ErrUnavailable,
			schema.ErrUnavailable,
			object.Uncertain},
		{"lost", objecttest.Fault{Lose: true, Kinds: []objecttest.Kind{objecttest.Put, objecttest.Get}},
			schema.ErrUnavailable,
			schema.ErrUnavailable, nil, nil, object.Uncertain},
		{"error inside", objecttest.Fault{ErrorInside: true}, schema.ErrUnavailable, schema.ErrUnavailable,
			schema.ErrUnavailable,
			schema.ErrUnavailable, object.Uncertain},
		{"whole", objecttest.Fault{Whole: true}, schema.ErrUnavailable, nil, nil, nil, object.Made},
		{"another range", objecttest.Fault{Other: true}, schema.ErrDataLoss, nil, nil, nil, object.Made},
		{"changed", objecttest.Fault{Change: true, Kinds: []objecttest.Kind{objecttest.Get}, Times: 1}, schema.ErrDataLoss,
			schema.ErrDataLoss,
			nil, nil, object.Made},
		{"late",
			objecttest.Fault{Delay: func(r *rand.Rand) time.Duration { return time.Duration(r.IntN(5)) * time.Millisecond }},
			nil, nil, nil,
			nil, object.Made},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFaulty(t, objecttest.Config{})
			ctx := context.Background()
			// Fresh connections and used ones.
			for range 2 {
				f.s.Fail(c.fault)
				f.want("Range", f.read(), c.read)
				_, _, err := f.b.Get(ctx, "dir/key", f.version, 1<<20)
				f.want("Get", err, c.whole)
				_, err = f.b.Stat(ctx, "dir/key")
				f.want("Stat", err, c.stat)
				var last error
				for _, err := range f.b.List(ctx, object.ListOptions{Prefix: "dir/"}) {
					last = err
				}
				f.want("List", last, c.list)
				before := f.s.Counts().Requests[objecttest.Put]
				outcome, err := f.put(object.Condition{})
				if outcome != c.outcome || (err == nil) != (outcome == object.Made) {
					t.Fatalf("Put: %v, %v, want %v", outcome, err, c.outcome)
				}
				noSecret(t, err)
				if n := f.s.Counts().Requests[objecttest.Put] - before; n != 1 {
					t.Fatalf("one Put made %d requests", n)
				}
				f.s.Heal()
				f.version = f.s.PutObject("bucket", "dir/key", f.data)
				f.want("Range afterwards", f.read(), nil)
			}
		})
	}
}

func TestThrottled(t *testing.T) {
	f := newFaulty(t, objecttest.Config{})
	slow := objecttest.SlowDown()
	slow.Prefix, slow.Rate, slow.Header = "dir/", 1, http.Header{"Retry-After": {"7"}}
	f.s.Fail(slow)
	refused := 0
	for range 100 {
		var th *object.ThrottledError
		if err := f.read(); errors.As(err, &th) {
			if th.Status != 503 || th.After != 7*time.Second || th.Key != "dir/key" || th.Bucket != f.b.URL() {
				t.Fatalf("%#v", th)
			}
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 || refused == 100 {
		t.Fatalf("%d of 100 requests were refused", refused)
	}
	f.s.PutObject("bucket", "other", []byte("x"))
	for range 50 { // another prefix
		if err := f.b.Range(t.Context(), "other", schema.ObjectVersion{}, 0, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// A read that hangs holds no other up, and ends with its context.
func TestHang(t *testing.T) {
	f := newFaulty(t, objecttest.Config{})
	f.want("Range", f.read(), nil)
	f.s.Fail(objecttest.Fault{Hang: true, Times: 3})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := f.b.Range(ctx, "dir/key", f.version, 0, make([]byte, 10)); !errors.Is(err, context.Canceled) {
				t.Errorf("a read that hung: %v", err)
			}
		})
	}
	for f.s.Counts().Failed < 3 {
		time.Sleep(time.Millisecond)
	}
	for range 5 { // hedges
		f.want("Range", f.read(), nil)
	}
	cancel()
	wg.Wait()
	f.s.Heal()
	// A write that hung is uncertain.
	f.s.Fail(objecttest.Fault{Hang: true, Times: 1})
	ctx, cancel = context.WithCancel(t.Context())
	wg.Go(func() {
		_, outcome, err := f.b.Put(ctx, "dir/new", []byte("x"), object.Condition{})
		if outcome != object.Uncertain || !errors.Is(err, context.Canceled) {
			t.Errorf("a write that hung: %v, %v", outcome, err)
		}
	})
	for f.s.Counts().Failed < 4 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	wg.Wait()
}

// A lost answer of a conditional write is settled by reading, and by that alone.
func TestLostWrites(t *testing.T) {
	f := newFaulty(t, objecttest.Config{Seed: 7})
	f.s.Fail(objecttest.Fault{Lose: true, Share: .3, Kinds: []objecttest.Kind{objecttest.Put}})
	ctx := t.Context()
	f.s.PutObject("bucket", "counter", []byte("0"))
	var mu sync.Mutex
	made, uncertain := 0, 0
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := 0; i < 5; {
				text, info, err := f.b.Get(ctx, "counter", schema.ObjectVersion{}, 1<<20)
				if err != nil {
					t.Error(err)
					return
				}
				name := fmt.Sprintf(" %d.%d", w, i)
				_, outcome, _ := f.b.Put(ctx, "counter", append(text, name...), object.Condition{Version: info.Version})
				if outcome == object.Uncertain {
					mu.Lock()
					uncertain++
					mu.Unlock()
					text, _, err = f.b.Get(ctx, "counter", schema.ObjectVersion{}, 1<<20)
					if err == nil && strings.Contains(string(text)+" ", name+" ") {
						outcome = object.Made
					}
				}
				if outcome == object.Made {
					mu.Lock()
					made++
					mu.Unlock()
					i++
				}
			}
		})
	}
	wg.Wait()
	text, _ := f.s.Object("bucket", "counter")
	names := strings.Fields(string(text))[1:]
	slices.Sort(names)
	if made != 40 || len(names) != 40 || len(slices.Compact(names)) != 40 || uncertain == 0 {
		t.Fatalf("%d made, %d uncertain; the object has %d: %s", made, uncertain, len(names), text)
	}
}

func TestRepeatedPage(t *testing.T) {
	f := newFaulty(t, objecttest.Config{PageSize: 3})
	for i := range 10 {
		f.s.PutObject("bucket", fmt.Sprintf("list/%d", i), nil)
	}
	f.s.Fail(objecttest.Fault{RepeatPage: true, Kinds: []objecttest.Kind{objecttest.List}, Skip: 2, Times: 1})
	var got []string
	var last error
	for i, err := range f.b.List(t.Context(), object.ListOptions{Prefix: "list/"}) {
		if last = err; err == nil {
			got = append(got, i.Key)
		}
	}
	f.want("List", last, schema.ErrUnavailable)
	if want := []string{"list/0", "list/1", "list/2", "list/3", "list/4", "list/5"}; !slices.Equal(got, want) {
		t.Fatalf("before the error there is %q", got)
	}
	// It can go on behind what it had.
	for i, err := range f.b.List(t.Context(), object.ListOptions{Prefix: "list/", After: got[5]}) {
		f.want("List", err, nil)
		got = append(got, i.Key)
	}
	if len(got) != 10 {
		t.Fatalf("all in all there is %q", got)
	}
}

func TestManyKeys(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 5000
	}
	f := newFaulty(t, objecttest.Config{})
	for i := range n {
		f.s.PutObject("bucket", fmt.Sprintf("many/%07d", i), nil)
	}
	got := 0
	for i, err := range f.b.List(t.Context(), object.ListOptions{Prefix: "many/"}) {
		f.want("List", err, nil)
		if i.Key != fmt.Sprintf("many/%07d", got) {
			t.Fatalf("number %d is %q", got, i.Key)
		}
		got++
	}
	if pages := f.s.Counts().Requests[objecttest.List]; got != n || pages != int64(n/1000) {
		t.Fatalf("%d of %d in %d pages", got, n, pages)
	}
}

// A wrong region or clock is noticed once, by any kind of call.
func TestRegionAndClock(t *testing.T) {
	calls := map[string]func(f *faulty) error{
		"Range": (*faulty).read,
		"Stat":  func(f *faulty) error { _, err := f.b.Stat(context.Background(), "dir/key"); return err },
		"Put": func(f *faulty) error {
			outcome, err := f.put(object.Condition{Absent: true})
			if outcome == object.Made && err != nil || outcome != object.Made && err == nil {
				return fmt.Errorf("%v, %w", outcome, err)
			}
			return err
		},
		"List": func(f *faulty) error {
			for _, err := range f.b.List(context.Background(), object.ListOptions{}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"Delete": func(f *faulty) error { return f.b.Delete(context.Background(), "dir/key") },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			f := newFaulty(t, objecttest.Config{Region: "eu-central-1"})
			f.want("elsewhere", call(f), nil)
			f.want("Stat", second(f.b.Stat(context.Background(), "none")), schema.ErrNotFound)
			if n := f.s.Counts().All(); n != 3 {
				t.Fatalf("%d requests", n)
			}
			for _, skew := range []time.Duration{2 * time.Hour, -48 * time.Hour} {
				f = newFaulty(t, objecttest.Config{})
				f.s.SetClock(skew)
				f.want("by another clock", call(f), nil)
				if n := f.s.Counts().All(); n != 2 {
					t.Fatalf("%d requests", n)
				}
			}
		})
	}
	f := newFaulty(t, objecttest.Config{})
	f.s.Fail(objecttest.Fault{Status: 307, Code: "TemporaryRedirect",
		Header: http.Header{"Location": {"https://other.example/x?secret=s3cr3t"}}})
	err := f.read()
	f.want("a redirect", err, schema.ErrInvalid)
	if !strings.Contains(err.Error(), "https://other.example: ") {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestTLS(t *testing.T) {
	ca := authtest.NewAuthority(t, "authority")
	pair := ca.Server(t)
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, objecttest.Config{TLS: &cert})
	file := authtest.Write(t, t.TempDir(), "ca.pem", ca.PEM)
	b := open(t, s.URL("bucket"), object.Options{Keys: &testKeys, CAFile: file})
	body := bytes.Repeat([]byte("tls"), 100_000)
	i, outcome, err := b.Put(t.Context(), "k", body, object.Condition{})
	if outcome != object.Made {
		t.Fatal(err)
	}
	for range 3 {
		buf := make([]byte, 200_000)
		if err := b.Range(t.Context(), "k", i.Version, 1000, buf); err != nil || !bytes.Equal(buf, body[1000:201_000]) {
			t.Fatal(err)
		}
	}
	if n := s.Counts().Connections; n != 1 {
		t.Fatalf("%d connections", n)
	}
	stranger := open(t, s.URL("bucket"), object.Options{Keys: &testKeys})
	if err := stranger.Range(t.Context(), "k", i.Version, 0, make([]byte, 1)); !errors.Is(err, schema.ErrUnavailable) ||
		!strings.Contains(err.Error(), "certificate") {
		t.Fatal(err)
	}
	if _, outcome, _ := stranger.Put(t.Context(), "k", body, object.Condition{}); outcome != object.Failed {
		t.Fatalf("a Put without a connection is %v", outcome)
	}
}

// A connection is used again after a body was read to its end, by as many as read at once.
func TestConnections(t *testing.T) {
	f := newFaulty(t, objecttest.Config{})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 30 {
				if err := f.read(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c := f.s.Counts()
	// A connection that is begun while another becomes free is kept, too.
	if c.Requests[objecttest.Get] != 480 || c.Connections > 32 {
		t.Fatalf("%+v", c)
	}
	if c.Sent != 480*5000 {
		t.Fatalf("%d bytes were sent", c.Sent)
	}
}

func TestNoServer(t *testing.T) {
	s := start(t, objecttest.Config{})
	url := s.URL("bucket")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b := open(t, url, object.Options{Keys: &testKeys})
	_, outcome, err := b.Put(t.Context(), "k", []byte("x"), object.Condition{})
	if outcome != object.Failed || !errors.Is(err, schema.ErrUnavailable) {
		t.Fatalf("%v, %v", outcome, err)
	}
	noSecret(t, err)
}

func TestNoBucket(t *testing.T) {
	s := start(t, objecttest.Config{})
	b := open(t, strings.Replace(s.URL("bucket"), "bucket", "other", 1), object.Options{Keys: &testKeys})
	v := schema.ObjectVersion{ETag: "x"}
	for _, err := range []error{b.Range(t.Context(), "k", v, 0, make([]byte, 1)), b.Delete(t.Context(), "k")} {
		if !errors.Is(err, schema.ErrNotFound) || !strings.Contains(err.Error(), "NoSuchBucket") {
			t.Fatal(err)
		}
	}
	_, outcome, err := b.Put(t.Context(), "k", nil, object.Condition{Version: v})
	if outcome != object.Failed || !errors.Is(err, schema.ErrNotFound) {
		t.Fatalf("%v, %v", outcome, err)
	}
}

// TestSharesLeaveRetriesEnough: a test's share of failing requests never fails three of the
// same requests in a row, so that a client which repeats them succeeds in every run.
func TestSharesLeaveRetriesEnough(t *testing.T) {
	f := newFaulty(t, objecttest.Config{Seed: 7})
	f.s.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Share: .9, Status: 503})
	f.s.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Share: .9, Lose: true})
	for i := range 10 {
		for try := 0; ; try++ {
			_, outcome, err := f.b.Put(t.Context(), fmt.Sprint(i), nil, object.Condition{})
			if outcome == object.Made {
				break
			}
			if try == 2 {
				t.Fatalf("the third try: %v, %v", outcome, err)
			}
		}
	}
}
