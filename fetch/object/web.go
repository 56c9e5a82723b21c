package object

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"bowstring/schema"
)

// web is a web server as a bucket: its objects can be read, but not listed or written. A
// version is the ETag. If the server has none, it is the time of the last change, which
// has a resolution of a second.
type web struct{ *remote }

// webDialect is the dialect of web servers: no credentials, and standard headers only.
type webDialect struct {
	base url.URL
	url  string
}

// modifiedTag begins a version that is made of Last-Modified.
const modifiedTag = "modified-"

func openWeb(a address, opts Options) (Bucket, error) {
	transport, err := newTransport(opts)
	if err != nil {
		return nil, err
	}
	d := &webDialect{base: url.URL{Scheme: a.scheme, Host: a.name}, url: a.String()}
	return &web{&remote{url: d.url, dialect: d, transport: transport}}, nil
}

// refuse is the error of a call that web servers do not support.
func (w *web) refuse(what string) error {
	return errorf(schema.ErrNotSupported, "%s is a web server: its objects are not %s", w.url, what)
}

// List implements Bucket.
func (w *web) List(context.Context, ListOptions) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		yield(Info{}, w.refuse("listed: name each of them"))
	}
}

// Put implements Bucket.
func (w *web) Put(context.Context, string, []byte, Condition) (Info, Outcome, error) {
	return Info{}, Failed, w.refuse("written")
}

// Delete implements Bucket.
func (w *web) Delete(context.Context, string) error { return w.refuse("deleted") }

func (d *webDialect) target(r *request) url.URL {
	u := d.base
	withKey(&u, r.key)
	return u
}

func (d *webDialect) wanted(r *request, v schema.ObjectVersion) error {
	seconds, modified := strings.CutPrefix(v.ETag, modifiedTag)
	switch {
	case v.ETag == "":
		return errorf(schema.ErrInvalid, "object %q of %s: a version is an ETag there, not %s", r.key, d.url, v)
	case modified:
		// If-Unmodified-Since is the condition for a server without ETags.
		n, err := strconv.ParseInt(seconds, 10, 64)
		if err != nil {
			return errorf(schema.ErrInvalid, "object %q of %s: %s is no version", r.key, d.url, v)
		}
		r.header["If-Unmodified-Since"] = []string{time.Unix(n, 0).UTC().Format(http.TimeFormat)}
	case !strings.HasPrefix(v.ETag, "W/"):
		// A weak ETag never matches If-Match (RFC 9110). The ETag of the answer is
		// compared anyway.
		r.header["If-Match"] = []string{quote(v.ETag)}
	}
	return nil
}

func (d *webDialect) condition(*request, Condition) error { return nil }

func (d *webDialect) sign(context.Context, *http.Request, []byte) error { return nil }

func (d *webDialect) version(h http.Header) schema.ObjectVersion {
	if etag := unquote(first(h, "Etag")); etag != "" {
		return schema.ObjectVersion{ETag: etag}
	}
	if at, err := http.ParseTime(first(h, "Last-Modified")); err == nil {
		return schema.ObjectVersion{ETag: modifiedTag + strconv.FormatInt(at.Unix(), 10)}
	}
	return schema.ObjectVersion{}
}

func (d *webDialect) made(http.Header, []byte) (schema.ObjectVersion, error) {
	return schema.ObjectVersion{}, nil
}

func (d *webDialect) page(*request, ListOptions, string) {}

func (d *webDialect) parse([]byte, time.Time) (page, error) { return page{}, nil }

func (d *webDialect) refused(r *request, a *answer) (bool, error) {
	if to := a.header.Get("Location"); a.status/100 == 3 && to != "" {
		hint := "it redirects"
		if u, err := url.Parse(to); err == nil && u.Host != "" {
			hint += " to " + u.Scheme + "://" + u.Host + ": give that" // the rest may contain a secret
		}
		return false, says(d.url, schema.ErrInvalid, r, a, hint)
	}
	return false, nil
}
