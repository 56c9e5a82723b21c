package object

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bowstring/schema"
)

// Connections go to all addresses in turn, new addresses are found, and one that does not answer is tried last.
func TestSpreader(t *testing.T) {
	var mu sync.Mutex
	var dialled []string
	addresses := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	lookups := 0
	down := map[string]bool{}
	var unresolved error
	now := time.Unix(1000, 0)
	s := newSpreader(func(_ context.Context, _, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialled = append(dialled, strings.TrimSuffix(address, ":80"))
		if down[strings.TrimSuffix(address, ":80")] {
			return nil, errors.New("no answer")
		}
		c, _ := net.Pipe()
		return c, nil
	})
	s.now = func() time.Time { return now }
	s.lookup = func(context.Context, string) ([]string, error) {
		lookups++
		return addresses, unresolved
	}
	dial := func(host string) error {
		c, err := s.DialContext(context.Background(), "tcp", host)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	want := func(what string, hosts ...string) {
		t.Helper()
		if !slices.Equal(dialled, hosts) {
			t.Fatalf("%s: dialled %q, want %q", what, dialled, hosts)
		}
		dialled = nil
	}
	for range 6 {
		if err := dial("bucket.example:80"); err != nil {
			t.Fatal(err)
		}
	}
	want("in turn", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.2", "10.0.0.3")
	if lookups != 1 {
		t.Fatalf("%d lookups", lookups)
	}
	down["10.0.0.1"] = true
	for range 4 {
		if err := dial("bucket.example:80"); err != nil {
			t.Fatal(err)
		}
	}
	want("one is down", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.2", "10.0.0.3")
	now = now.Add(resolveEvery)
	addresses = []string{"10.0.0.9"}
	if err := dial("bucket.example:80"); err != nil {
		t.Fatal(err)
	}
	want("others now", "10.0.0.9")
	now = now.Add(resolveEvery)
	unresolved = errors.New("no resolver")
	if err := dial("bucket.example:80"); err != nil {
		t.Fatal(err)
	}
	want("the last answer goes on", "10.0.0.9")
	down["10.0.0.9"] = true
	if err := dial("bucket.example:80"); err == nil {
		t.Fatal("dialled what is down")
	}
	want("all are down", "10.0.0.9")
	if err := dial("other.example:80"); !errors.Is(err, unresolved) {
		t.Fatal(err)
	}
	if err := dial("10.1.1.1:80"); err != nil {
		t.Fatal(err)
	}
	want("an address", "10.1.1.1")
}

// recorded is a bucket whose requests all go to one handler, whatever host they are for.
func recorded(t *testing.T, url string, opts Options, answer http.HandlerFunc) (Bucket, func() []*http.Request) {
	t.Helper()
	var mu sync.Mutex
	var seen []*http.Request
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r)
		mu.Unlock()
		answer(w, r)
	}))
	s.EnableHTTP2 = true // which must not be used
	if strings.Contains(url, "=http:") || strings.HasPrefix(url, "http:") {
		s.Start()
	} else {
		s.StartTLS()
	}
	t.Cleanup(s.Close)
	b, err := Open(context.Background(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	r, ok := b.(*remote)
	if !ok {
		r = b.(*web).remote //nolint:forcetypeassert // the only other kind
	}
	r.transport.TLSClientConfig.InsecureSkipVerify = true
	r.transport.DialTLSContext = nil // so that there is one way
	r.transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
	}
	return b, func() []*http.Request {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// The requests that the clouds themselves receive.
func TestRequests(t *testing.T) {
	keys := Options{Keys: &Keys{ID: "AKID", Secret: "c2VjcmV0", Token: ""}}
	for _, c := range []struct {
		url        string
		opts       Options
		host, path string
		query      string
		header     map[string]string // part of the value; "" is none
	}{
		{"s3://my-bucket?region=eu-west-1", keys, "my-bucket.s3.eu-west-1.amazonaws.com", "/a%20b%2Bc/d", "",
			map[string]string{"Authorization": "/eu-west-1/s3/aws4_request", "If-Match": `"tag"`, "Accept-Encoding": "identity",
				"X-Amz-Request-Payer": ""}},
		{"s3://my.bucket?region=cn-north-1", keys, "s3.cn-north-1.amazonaws.com.cn", "/my.bucket/a%20b%2Bc/d", "", nil},
		{"s3://b?endpoint=http://host:81/base", keys, "host:81", "/base/b/a%20b%2Bc/d", "", nil},
		{"s3://b?endpoint=http://host:81&style=virtual", keys, "b.host:81", "/a%20b%2Bc/d", "", nil},
		{"s3://b?requester-pays=true&region=eu-west-1", keys, "b.s3.eu-west-1.amazonaws.com", "/a%20b%2Bc/d", "",
			map[string]string{"X-Amz-Request-Payer": "requester", "Authorization": "x-amz-request-payer"}},
		{"s3://b?anonymous=true&region=eu-west-1", Options{}, "b.s3.eu-west-1.amazonaws.com", "/a%20b%2Bc/d", "",
			map[string]string{"Authorization": ""}},
		{"gs://b?user-project=me", Options{Keys: &Keys{Token: "tok"}}, "storage.googleapis.com", "/b/a%20b%2Bc/d",
			"generation=17",
			map[string]string{"Authorization": "Bearer tok", "X-Goog-User-Project": "me", "If-Match": ""}},
		{"gs://b?anonymous=true", Options{}, "storage.googleapis.com", "/b/a%20b%2Bc/d", "generation=17",
			map[string]string{"Authorization": ""}},
		{"az://acc/con", keys, "acc.blob.core.windows.net", "/con/a%20b%2Bc/d", "",
			map[string]string{"Authorization": "SharedKey acc:", "X-Ms-Version": "2023", "If-Match": `"tag"`}},
		{"az://acc/con", Options{Keys: &Keys{Token: "?sv=1&sig=a%2Bb"}}, "acc.blob.core.windows.net", "/con/a%20b%2Bc/d",
			"sig=a%2Bb&sv=1",
			map[string]string{"Authorization": ""}},
		{"https://Web.Example", Options{}, "web.example", "/a%20b%2Bc/d", "", map[string]string{"If-Match": `"tag"`}},
	} {
		b, seen := recorded(t, c.url, c.opts, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"tag"`)
			w.Header().Set("X-Goog-Generation", "17")
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader("0123456789"))
		})
		v := schema.ObjectVersion{ETag: "tag"}
		if strings.HasPrefix(c.url, "gs:") {
			v = schema.ObjectVersion{ID: "17"}
		}
		buf := make([]byte, 4)
		if err := b.Range(context.Background(), "a b+c/d", v, 3, buf); err != nil || string(buf) != "3456" {
			t.Fatalf("%s: %v, %q", c.url, err, buf)
		}
		r := seen()[0]
		if r.Host != c.host || r.URL.EscapedPath() != c.path || r.URL.RawQuery != c.query || r.ProtoMajor != 1 {
			t.Errorf("%s: asks %s for %s?%s by %s", c.url, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, r.Proto)
		}
		for name, part := range c.header {
			if got := r.Header.Get(name); (got == "") != (part == "") || !strings.Contains(got, part) {
				t.Errorf("%s: the header %s is %q", c.url, name, got)
			}
		}
	}
}

// A web server's objects are read by ETag or by the time of their last change, and are not written.
func TestWeb(t *testing.T) {
	ctx := context.Background()
	changed, tagged, ranges := time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC), false, true
	b, _ := recorded(t, "http://web.example", Options{}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/gone":
			http.NotFound(w, r)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "https://elsewhere.example/x?token=s3cr3t", http.StatusFound)
		case !ranges:
			_, _ = w.Write([]byte("0123456789"))
		default:
			if tagged {
				w.Header().Set("Etag", `W/"weak"`)
			}
			http.ServeContent(w, r, "", changed, strings.NewReader("0123456789"))
		}
	})
	for _, tagged = range []bool{false, true} {
		info, err := b.Stat(ctx, "k")
		if err != nil || info.Size != 10 || info.Version.IsZero() {
			t.Fatalf("%+v, %v", info, err)
		}
		buf := make([]byte, 3)
		if err := b.Range(ctx, "k", info.Version, 1, buf); err != nil || string(buf) != "123" {
			t.Fatalf("%v, %q", err, buf)
		}
		var c *ChangedError
		if tagged {
			info.Version.ETag = `W/"other"`
		}
		changed = changed.Add(time.Hour)
		if err := b.Range(ctx, "k", info.Version, 1, buf); !errors.As(err, &c) {
			t.Fatal(err)
		}
	}
	if _, _, err := b.Get(ctx, "gone", schema.ObjectVersion{}, 10); !errors.Is(err, schema.ErrNotFound) {
		t.Fatal(err)
	}
	_, _, err := b.Get(ctx, "moved", schema.ObjectVersion{}, 10)
	if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "https://elsewhere.example: ") ||
		strings.Contains(err.Error(), "s3cr3t") {
		t.Fatal(err)
	}
	for _, err := range b.List(ctx, ListOptions{}) {
		if !errors.Is(err, schema.ErrNotSupported) {
			t.Fatal(err)
		}
	}
	if _, outcome, err := b.Put(ctx, "k", nil, Condition{}); outcome != Failed || !errors.Is(err, schema.ErrNotSupported) {
		t.Fatal(err)
	}
	if err := b.Delete(ctx, "k"); !errors.Is(err, schema.ErrNotSupported) {
		t.Fatal(err)
	}
	ranges = false
	if err := b.Range(ctx, "k", schema.ObjectVersion{}, 1, make([]byte, 3)); !errors.Is(err, schema.ErrNotSupported) {
		t.Fatal(err)
	}
	if _, _, err := b.Get(ctx, "k", schema.ObjectVersion{}, 9); !errors.Is(err, schema.ErrLimit) {
		t.Fatal(err)
	}
}

// An object that Google Cloud Storage would decode on its way is refused.
func TestTranscoded(t *testing.T) {
	b, _ := recorded(t, "gs://b?anonymous=true", Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Goog-Generation", "17")
		w.Header().Set("X-Goog-Stored-Content-Encoding", "gzip")
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("0123456789"))
	})
	if err := b.Range(context.Background(), "k", schema.ObjectVersion{}, 1, make([]byte, 3)); !errors.Is(err,
		schema.ErrNotSupported) {
		t.Fatal(err)
	}
	if _, _, err := b.Get(context.Background(), "k", schema.ObjectVersion{}, 100); !errors.Is(err,
		schema.ErrNotSupported) {
		t.Fatal(err)
	}
}
