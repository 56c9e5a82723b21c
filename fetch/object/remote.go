package object

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

const (
	// idleFor is how long an unused connection is kept. It is shorter than servers keep
	// connections, so that a request is not written to a connection that the server has
	// closed.
	idleFor = 15 * time.Second
	// idleConns is how many unused connections to one host are kept.
	idleConns = 1024
	// answerLimit bounds the bytes that are read of an answer that is no object: errors,
	// pages of lists.
	answerLimit = 16 << 20
)

// dialect is how one kind of server wants requests, and how it answers. Everything else
// about requests is in remote, once for all servers. Implementations are safe for
// concurrent use.
type dialect interface {
	// target is the URL of the request's object or bucket, without its query.
	target(r *request) url.URL
	// wanted adds to a read the version that it wants.
	wanted(r *request, v schema.ObjectVersion) error
	// condition adds to a write the condition under which it may be made.
	condition(r *request, c Condition) error
	// sign adds the caller's credentials. It may read the clock, request credentials, and
	// fail.
	sign(ctx context.Context, r *http.Request, body []byte) error
	// version is the version of the object that an answer is about.
	version(h http.Header) schema.ObjectVersion
	// made is the version that a write has made, from the answer to it.
	made(h http.Header, body []byte) (schema.ObjectVersion, error)
	// page makes the request for a page of a list; token is that of the page before, ""
	// for the first.
	page(r *request, opts ListOptions, token string)
	// parse reads a page of a list. date is the server's clock.
	parse(body []byte, date time.Time) (page, error)
	// refused interprets a definite refusal. again is true if the same request may
	// succeed now: in another region, with new credentials, or with a corrected clock.
	refused(r *request, a *answer) (again bool, err error)
}

// request is a request to a server, before a dialect makes HTTP of it.
type request struct {
	method string
	key    string
	query  url.Values
	header http.Header
	body   []byte
	write  bool // it has a body, maybe an empty one
}

// ifETag adds the condition of a write in the form of HTTP. url is the bucket's, for
// errors.
func (r *request) ifETag(c Condition, url string) error {
	switch {
	case c.Absent:
		r.header["If-None-Match"] = []string{"*"}
	case c.Version.ETag != "":
		r.header["If-Match"] = []string{quote(c.Version.ETag)}
	case !c.Version.IsZero():
		return errorf(schema.ErrInvalid, "object %q of %s: a conditional write takes the ETag, not %s", r.key, url, c.Version)
	}
	return nil
}

// answer is an answer that is no success.
type answer struct {
	status  int
	header  http.Header
	code    string // the server's name of the error, "" if there is none
	message string
	region  string // the bucket's region, if the body names one
}

// remote is a bucket at a server. It does what all servers have in common: connections,
// ranges, checks of answers, errors. It is safe for concurrent use.
type remote struct {
	url       string
	dialect   dialect
	transport *http.Transport
	// ranges says that all servers of this kind answer ranges. A whole object in answer
	// to a range is then a temporary failure, such as that of a proxy.
	ranges bool
	// firstByte receives how long requests wait for the first byte of their answers; nil
	// if no meter counts.
	firstByte func(time.Duration)
	// forbidden are characters that keys cannot have at this kind of server.
	forbidden string
}

// onFirstByte implements firstByter.
func (b *remote) onFirstByte(took func(time.Duration)) { b.firstByte = took }

// newTransport returns the connections of one bucket. It is not shared between buckets:
// each has its own certificates, and its idle connections end with it.
func newTransport(opts Options) (*http.Transport, error) {
	roots, err := authorities(opts.CAFile)
	if err != nil {
		return nil, err
	}
	dial := newSpreader(opts.Dial).DialContext
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12,
		ClientSessionCache: tls.NewLRUClientSessionCache(64)}
	return &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: dial,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialTLS(ctx, network, address, dial, config)
		},
		TLSClientConfig:     config, // for connections through a proxy
		TLSHandshakeTimeout: handshakePatience,
		MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:     idleFor,
		DisableCompression:  true,
		// Only HTTP/1.1: streams of HTTP/2 share one connection and its flow-control
		// window, so a hedge would wait behind the request that it is meant to replace.
		ForceAttemptHTTP2: false,
		TLSNextProto:      map[string]func(string, *tls.Conn) http.RoundTripper{},
	}, nil
}

// authorities returns the system's certificates with those of a file; nil, which means
// the system's, if there is no file.
func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // nil are the system's
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, errorf(schema.ErrInvalid, "certificates of authorities: %v", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errorf(schema.ErrInvalid, "certificates of authorities: %s has none in PEM", file)
	}
	return pool, nil
}

// URL implements Bucket.
func (b *remote) URL() string { return b.url }

// Close implements Bucket.
func (b *remote) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}

// send makes a request. It repeats the request only if the server said that it did not
// carry it out. The answer has a status of 2xx, and the caller closes its body. sent, if
// not nil, says afterwards whether the last attempt may have reached the server.
func (b *remote) send(ctx context.Context, r *request, sent *atomic.Bool) (*http.Response, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx, b.url, r.key)
	}
	if sent != nil {
		ctx = httptrace.WithClientTrace(ctx,
			&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	}
	// Region, clock and credentials may each be wrong once, so three repeats are enough.
	for left := 3; ; left-- {
		resp, err := b.once(ctx, r)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode/100 == 2 {
			return resp, nil
		}
		a := b.answer(resp)
		again, err := b.dialect.refused(r, a)
		if err == nil {
			err = b.meaning(r, a)
		}
		if !again || left == 0 {
			return nil, &answeredError{status: a.status, code: a.code, err: err}
		}
		if sent != nil {
			sent.Store(false)
		}
	}
}

// answeredError is an error that a server answered with. Its status and code let callers
// distinguish it from a lost connection.
type answeredError struct {
	err    error
	code   string
	status int
}

func (e *answeredError) Error() string { return e.err.Error() }
func (e *answeredError) Unwrap() error { return e.err }

// once makes one attempt of a request: target, headers, signature. Headers are copied,
// since signing changes them.
func (b *remote) once(ctx context.Context, r *request) (*http.Response, error) {
	u := b.dialect.target(r)
	if r.query != nil {
		u.RawQuery = r.query.Encode()
	}
	// The copy has room for the headers that sign adds. Direct assignment of canonical
	// names saves a conversion for each.
	h := make(http.Header, len(r.header)+6)
	for k, v := range r.header {
		h[k] = v
	}
	h["Accept-Encoding"] = identity
	h["User-Agent"] = userAgent
	hr := (&http.Request{Method: r.method, URL: &u, Host: u.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1,
		ProtoMinor: 1}).
		WithContext(ctx)
	if r.write {
		hr.ContentLength = int64(len(r.body))
		hr.Body = http.NoBody
		if len(r.body) > 0 {
			hr.Body = io.NopCloser(bytes.NewReader(r.body))
			hr.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.body)), nil }
		}
	}
	if err := b.dialect.sign(ctx, hr, r.body); err != nil {
		if ctx.Err() != nil {
			return nil, ended(ctx, b.url, r.key)
		}
		return nil, err
	}
	// RoundTrip of the transport, and not http.Client: the client would follow redirects,
	// which the dialect has to see.
	begun := time.Now()
	resp, err := b.transport.RoundTrip(hr)
	if err != nil {
		return nil, b.lost(ctx, r.key, err)
	}
	if b.firstByte != nil {
		b.firstByte(time.Since(begun))
	}
	return resp, nil
}

var (
	identity  = []string{"identity"}
	userAgent = []string{"bowstring"}
)

// lost is the error of a broken connection, or of the context if that has ended.
func (b *remote) lost(ctx context.Context, key string, err error) error {
	if ctx.Err() != nil {
		return ended(ctx, b.url, key)
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return errorf(schema.ErrUnavailable, "%s has a certificate that is not trusted: %v", b.url, err)
	}
	if key == "" {
		return errorf(schema.ErrUnavailable, "%s: %v", b.url, err)
	}
	return errorf(schema.ErrUnavailable, "object %q of %s: %v", key, b.url, err)
}

// answer reads the server's description of a refusal, as far as it has one, and closes
// the body.
func (b *remote) answer(resp *http.Response) *answer {
	a := &answer{status: resp.StatusCode, header: resp.Header}
	// The connection can be used again only if the body was read to its end.
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	_ = resp.Body.Close()
	var said struct {
		Code, Message, Region string
	}
	if err == nil && xml.Unmarshal(body, &said) == nil {
		a.code, a.message, a.region = said.Code, said.Message, said.Region
	}
	if a.code == "" {
		a.code = resp.Header.Get("X-Ms-Error-Code")
	}
	if len(a.message) > 300 {
		a.message = a.message[:300] + "…"
	}
	a.message, _, _ = strings.Cut(a.message, "\n") // Azure appends the time and the id of the request
	return a
}

// meaning is the error for a status that means the same in all dialects.
func (b *remote) meaning(r *request, a *answer) error {
	kind := schema.ErrInvalid
	switch {
	case a.status == http.StatusNotFound:
		kind = schema.ErrNotFound
	case a.status == http.StatusForbidden || a.status == http.StatusUnauthorized:
		kind = schema.ErrDenied
	case a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable:
		after, _ := strconv.Atoi(a.header.Get("Retry-After"))
		return &ThrottledError{Bucket: b.url, Key: r.key, Status: a.status, After: time.Duration(max(after, 0)) * time.Second}
	case a.status == http.StatusNotImplemented || a.status == http.StatusMethodNotAllowed:
		kind = schema.ErrNotSupported
	case a.status >= 500 || a.status == http.StatusRequestTimeout || a.status/100 == 3:
		kind = schema.ErrUnavailable
	case a.status == http.StatusConflict || a.status == http.StatusPreconditionFailed:
		kind = schema.ErrConflict
	}
	return says(b.url, kind, r, a, "")
}

// says is an error of a kind with the server's message and a hint.
func says(bucket string, kind error, r *request, a *answer, hint string) error {
	what := bucket
	if r.key != "" {
		what = fmt.Sprintf("object %q of %s", r.key, bucket)
	}
	said := strconv.Itoa(a.status)
	if a.code != "" {
		said += " " + a.code
	}
	if a.message != "" && a.message != a.code {
		said += " (" + strings.TrimSuffix(a.message, ".") + ")"
	}
	if hint != "" {
		hint = ": " + hint
	}
	return errorf(kind, "%s: the server answers %s%s", what, said, hint)
}

// read requests an object or a range of it, and checks the version of the answer.
func (b *remote) read(ctx context.Context, method, key string, v schema.ObjectVersion, span string) (*http.Response,
	error) {
	r := &request{method: method, key: key, header: make(http.Header, 3)}
	if span != "" {
		r.header["Range"] = []string{span}
	}
	if !v.IsZero() {
		if err := b.dialect.wanted(r, v); err != nil {
			return nil, err
		}
	}
	resp, err := b.send(ctx, r, nil)
	if err == nil {
		// Not every server obeys a condition on the version, so the answer is compared as
		// well.
		have := b.dialect.version(resp.Header)
		if v.ETag != "" && have.ETag != "" && v.ETag != have.ETag || v.ID != "" && have.ID != "" && v.ID != have.ID {
			_ = resp.Body.Close()
			return nil, &ChangedError{Bucket: b.url, Key: key, Want: v, Have: have}
		}
		// An answer without a version is no object: it comes from a proxy, or is an error
		// with status 200. Only web servers have objects without a version.
		if have.IsZero() && (b.ranges || !v.IsZero()) {
			_ = resp.Body.Close()
			return nil, errorf(schema.ErrUnavailable, "object %q of %s: the server answers %d and does not say with which "+
				"version", key, b.url,
				resp.StatusCode)
		}
		return resp, nil
	}
	var a *answeredError
	if !v.IsZero() && errors.As(err, &a) {
		switch {
		case a.status == http.StatusPreconditionFailed:
			return nil, &ChangedError{Bucket: b.url, Key: key, Want: v}
		case a.status == http.StatusNotFound && a.code != "NoSuchBucket" && a.code != "ContainerNotFound":
			// If the version was requested by its id, another version may still exist.
			return nil, &ChangedError{Bucket: b.url, Key: key, Want: v, Gone: v.ID == ""}
		}
	}
	return nil, err
}

// Range implements Bucket.
func (b *remote) Range(ctx context.Context, key string, v schema.ObjectVersion, offset int64, buf []byte) error {
	if err := b.checkKey(key); err != nil {
		return err
	}
	if offset < 0 {
		return errorf(schema.ErrInvalid, "object %q of %s: offset %d", key, b.url, offset)
	}
	if len(buf) == 0 { // HTTP has no empty range
		info, err := b.stat(ctx, key, v)
		if err == nil && offset > info.Size {
			err = beyond(b.url, key, offset, 0, info.Size)
		}
		return err
	}
	var span [64]byte
	s := append(span[:0], "bytes="...)
	s = strconv.AppendInt(s, offset, 10)
	s = append(s, '-')
	s = strconv.AppendInt(s, offset+int64(len(buf))-1, 10)
	resp, err := b.read(ctx, http.MethodGet, key, v, string(s))
	if err != nil {
		var a *answeredError
		if errors.As(err, &a) && a.status == http.StatusRequestedRangeNotSatisfiable {
			return errorf(schema.ErrInvalid, "object %q of %s: %d bytes from %d on reach beyond its end", key, b.url, len(buf),
				offset)
		}
		return err
	}
	defer resp.Body.Close()
	if err := b.checkRange(resp, key, offset, len(buf)); err != nil {
		return err
	}
	if err := readFull(ctx, resp.Body, buf); err != nil {
		return b.lost(ctx, key, fmt.Errorf("the answer was cut short: %w", err))
	}
	return nil
}

// checkRange checks that an answer has exactly the requested bytes. A proxy or a broken
// server may send others, which would be delivered as a sample.
func (b *remote) checkRange(resp *http.Response, key string, offset int64, length int) error {
	if resp.StatusCode == http.StatusOK {
		kind := schema.ErrNotSupported
		if b.ranges {
			kind = schema.ErrUnavailable
		}
		return errorf(kind, "object %q of %s: the server answers a range with the whole object", key, b.url)
	}
	first, last, size, ok := parseContentRange(resp.Header.Get("Content-Range"))
	if resp.StatusCode != http.StatusPartialContent || !ok {
		return errorf(schema.ErrDataLoss, "object %q of %s: the server answers a range with status %d and Content-Range %q",
			key, b.url,
			resp.StatusCode, resp.Header.Get("Content-Range"))
	}
	// Azurite answers a range beyond the end in this way: it has no bytes.
	if first == offset && last < offset+int64(length)-1 && last == size-1 {
		return beyond(b.url, key, offset, length, size)
	}
	if first != offset || last != offset+int64(length)-1 || resp.ContentLength >= 0 &&
		resp.ContentLength != int64(length) {
		return errorf(schema.ErrDataLoss, "object %q of %s: the server was asked for %d bytes from %d on, and answers "+
			"bytes %d to %d, %d of them",
			key, b.url, length, offset, first, last, resp.ContentLength)
	}
	return b.checkEncoding(resp, key)
}

// checkEncoding refuses an answer that was decoded or encoded on its way, because its
// ranges are not those of the object.
func (b *remote) checkEncoding(resp *http.Response, key string) error {
	stored := resp.Header.Get("X-Goog-Stored-Content-Encoding")
	if stored != "" && stored != "identity" && resp.Header.Get("Content-Encoding") != stored {
		return errorf(schema.ErrNotSupported, "object %q of %s is stored with Content-Encoding %s, and Google Cloud "+
			"Storage decodes it when it "+
			"is read: store it without that", key, b.url, stored)
	}
	return nil
}

// parseContentRange parses "bytes first-last/size". An unknown size, "*", is
// math.MaxInt64.
func parseContentRange(s string) (first, last, size int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	span, total, ok2 := strings.Cut(s, "/")
	a, z, ok3 := strings.Cut(span, "-")
	if !ok || !ok2 || !ok3 {
		return 0, 0, 0, false
	}
	first, err1 := strconv.ParseInt(a, 10, 64)
	last, err2 := strconv.ParseInt(z, 10, 64)
	size, err3 := strconv.ParseInt(total, 10, 64)
	if total == "*" {
		size, err3 = 1<<63-1, nil
	}
	return first, last, size, err1 == nil && err2 == nil && err3 == nil && first >= 0 && last >= first-1 && size > last
}

// Get implements Bucket.
func (b *remote) Get(ctx context.Context, key string, v schema.ObjectVersion, limit int64) ([]byte, Info, error) {
	if err := b.checkKey(key); err != nil {
		return nil, Info{}, err
	}
	resp, err := b.read(ctx, http.MethodGet, key, v, "")
	if err != nil {
		return nil, Info{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, Info{}, errorf(schema.ErrDataLoss, "object %q of %s: the server answers with status %d where the "+
			"whole object was asked for",
			key, b.url, resp.StatusCode)
	}
	if err := b.checkEncoding(resp, key); err != nil {
		return nil, Info{}, err
	}
	info := b.info(key, resp)
	if info.Size > limit {
		return nil, Info{}, tooLarge(b.url, key, info.Size, limit)
	}
	var body []byte
	// The usual case allocates once. The size is known to be within the limit.
	if info.Size >= 0 {
		body = make([]byte, info.Size)
		_, err = io.ReadFull(resp.Body, body)
	} else { // a web server that generates its answer
		body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
		if info.Size = int64(len(body)); err == nil && info.Size > limit {
			return nil, Info{}, errorf(schema.ErrLimit, "object %q of %s has more than the %d bytes that are read at once",
				key, b.url, limit)
		}
	}
	if err != nil {
		return nil, Info{}, b.lost(ctx, key, fmt.Errorf("the answer was cut short: %w", err))
	}
	return body, info, nil
}

// info describes the object of an answer, from its headers.
func (b *remote) info(key string, resp *http.Response) Info {
	i := Info{Key: key, Size: resp.ContentLength, Version: b.dialect.version(resp.Header),
		Class: class(resp.Header.Get("X-Amz-Storage-Class"))}
	i.Modified, _ = http.ParseTime(resp.Header.Get("Last-Modified"))
	i.Date, _ = http.ParseTime(resp.Header.Get("Date"))
	return i
}

// class normalizes a storage class: the usual ones are "".
func class(name string) string {
	switch name {
	case "STANDARD", "Hot":
		return ""
	}
	return name
}

// Stat implements Bucket.
func (b *remote) Stat(ctx context.Context, key string) (Info, error) {
	if err := b.checkKey(key); err != nil {
		return Info{}, err
	}
	return b.stat(ctx, key, schema.ObjectVersion{})
}

// stat describes an object of a version, or of any if v is zero.
func (b *remote) stat(ctx context.Context, key string, v schema.ObjectVersion) (Info, error) {
	resp, err := b.read(ctx, http.MethodHead, key, v, "")
	if err != nil {
		return Info{}, err
	}
	_ = resp.Body.Close()
	if resp.ContentLength < 0 {
		return Info{}, errorf(schema.ErrNotSupported, "object %q of %s: the server does not say how long it is", key, b.url)
	}
	return b.info(key, resp), nil
}

// checkKey refuses keys that no server or not this one accepts. 1,024 bytes is the limit
// of S3, Google Cloud Storage and Azure.
func (b *remote) checkKey(key string) error {
	if key == "" {
		return errorf(schema.ErrInvalid, "%s: an object's key is not empty", b.url)
	}
	if b.forbidden != "" && strings.ContainsAny(key, b.forbidden) {
		return errorf(schema.ErrInvalid, "%s: the key %q has one of %q, which such a server takes for another", b.url, key,
			b.forbidden)
	}
	if len(key) > 1024 {
		return errorf(schema.ErrInvalid, "%s: an object's key has at most 1,024 bytes, this one has %d: %.40q…", b.url,
			len(key), key)
	}
	return nil
}

// Put implements Bucket. Any answer that does not say clearly whether the object was
// written is Uncertain: the caller then reads the object to find out.
func (b *remote) Put(ctx context.Context, key string, body []byte, c Condition) (Info, Outcome, error) {
	if err := errors.Join(b.checkKey(key), checkCondition(b.url, key, c)); err != nil {
		return Info{}, Failed, err
	}
	r := &request{method: http.MethodPut, key: key, header: http.Header{}, body: body, write: true}
	if err := b.dialect.condition(r, c); err != nil {
		return Info{}, Failed, err
	}
	var sent atomic.Bool
	resp, err := b.send(ctx, r, &sent)
	if err != nil {
		outcome := b.outcome(c, err, sent.Load())
		if outcome == Moved {
			err = moved(b.url, key)
		}
		return Info{}, outcome, err
	}
	// S3 may report a failure within an answer of status 200.
	said, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	_ = resp.Body.Close()
	if bytes.Contains(said, []byte("<Error>")) {
		return Info{}, Uncertain, errorf(schema.ErrUnavailable, "object %q of %s: the server answers %d with an error "+
			"inside", key, b.url,
			resp.StatusCode)
	}
	if err != nil && len(said) > 0 {
		return Info{}, Uncertain, b.lost(ctx, key, fmt.Errorf("the answer was cut short: %w", err))
	}
	info := b.info(key, resp)
	if info.Version, err = b.dialect.made(resp.Header, said); err != nil || info.Version.IsZero() {
		return Info{}, Uncertain, errorf(schema.ErrUnavailable, "object %q of %s: the server answers %d to a write and "+
			"does not say which "+
			"version it made", key, b.url, resp.StatusCode)
	}
	// The Content-Length is that of the answer, not of the object.
	info.Size, info.Class = int64(len(body)), ""
	if info.Modified.IsZero() {
		info.Modified = info.Date
	}
	return info, Made, nil
}

// outcome is the outcome of a write that ended with an error. A connection that was lost
// after the request was sent is Uncertain.
func (b *remote) outcome(c Condition, err error, sent bool) Outcome {
	var a *answeredError
	if !errors.As(err, &a) {
		if sent {
			return Uncertain
		}
		return Failed
	}
	switch {
	case a.status == http.StatusPreconditionFailed && c != (Condition{}):
		return Moved
	// The object that should have been replaced is gone.
	case a.status == http.StatusNotFound && !c.Version.IsZero() && a.code != "NoSuchBucket" &&
		a.code != "ContainerNotFound":
		return Moved
	case a.status == http.StatusConflict && c.Absent && a.code == "BlobAlreadyExists":
		return Moved
	case a.status == http.StatusNotImplemented:
		return Failed
	// 409 of S3 means that another write was under way, and neither yes nor no.
	case a.status >= 500, a.status == http.StatusConflict, a.status == http.StatusRequestTimeout:
		return Uncertain
	}
	return Failed
}

// Delete implements Bucket.
func (b *remote) Delete(ctx context.Context, key string) error {
	if err := b.checkKey(key); err != nil {
		return err
	}
	resp, err := b.send(ctx, &request{method: http.MethodDelete, key: key, header: http.Header{}}, nil)
	var a *answeredError
	if errors.As(err, &a) && a.status == http.StatusNotFound && a.code != "NoSuchBucket" && a.code != "ContainerNotFound" {
		return nil
	}
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	return nil
}

// List implements Bucket. It checks that keys ascend and begin with the prefix: an import
// relies on both, and a server that violates them would make it skip objects.
func (b *remote) List(ctx context.Context, opts ListOptions) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		token, last, begun := "", "", false // the last entry of the server
		for {
			var p page
			err := opts.begin(ctx)
			if err == nil {
				p, err = b.page(ctx, opts, token)
			}
			if err != nil {
				yield(Info{}, err)
				return
			}
			for i := range p.entries {
				e := &p.entries[i]
				if begun && e.Key <= last {
					yield(Info{}, errorf(schema.ErrUnavailable, "%s: the server's list does not go on in the order of keys: %q "+
						"comes after %q",
						b.url, e.Key, last))
					return
				}
				if !strings.HasPrefix(e.Key, opts.Prefix) {
					yield(Info{}, errorf(schema.ErrDataLoss, "%s: the server lists %q, which does not begin with %q", b.url, e.Key,
						opts.Prefix))
					return
				}
				begun, last = true, e.Key
				// Not every server can begin behind a key, and servers differ on whether
				// a prefix of that key is listed.
				if e.Key <= opts.After {
					continue
				}
				if !yield(*e, nil) {
					return
				}
			}
			if p.next == "" {
				return
			}
			// A server that repeats its token would make the list endless.
			if p.next == token {
				yield(Info{}, errorf(schema.ErrUnavailable, "%s: the server gives the same page of a list again", b.url))
				return
			}
			token = p.next
		}
	}
}

// page requests and parses one page of a list.
func (b *remote) page(ctx context.Context, opts ListOptions, token string) (page, error) {
	r := &request{method: http.MethodGet, query: url.Values{}, header: http.Header{}}
	b.dialect.page(r, opts, token)
	resp, err := b.send(ctx, r, nil)
	if err != nil {
		return page{}, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	_ = resp.Body.Close()
	if err != nil {
		return page{}, b.lost(ctx, "", fmt.Errorf("a page of a list was cut short: %w", err))
	}
	date, _ := http.ParseTime(resp.Header.Get("Date"))
	p, err := b.dialect.parse(body, date)
	if err != nil {
		return page{}, errorf(schema.ErrUnavailable, "%s: a page of a list cannot be read: %v", b.url, err)
	}
	return p, nil
}
