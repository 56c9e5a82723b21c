// Package objecttest has three things for tests of object stores: the suite that every
// object.Bucket passes, an S3 server in the test's process that fails on demand, and real
// servers as processes.
//
// The server parses HTTP by itself, so that a benchmark measures the reader and not
// net/http.
package objecttest

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"crypto/tls"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

// Kind is the purpose of a request.
type Kind int

// Get, Head, Put, Delete and List are the kinds of requests. kinds is their number.
const (
	Get Kind = iota
	Head
	Put
	Delete
	List
	kinds
)

// String names the kind.
func (k Kind) String() string {
	return [...]string{"get", "head", "put", "delete", "list", "unknown"}[min(max(k, 0), kinds)]
}

// Fault selects requests and describes how they fail. The first fields select. All
// effects that are set take place.
type Fault struct {
	// Selection: which requests fail.
	Kinds  []Kind  // none: all
	Prefix string  // of their keys; for lists, the listed prefix
	Skip   int     // how many of them are served first
	Times  int     // how many of them fail, at most; 0: all
	Share  float64 // of them that fail, sampled by the server's seed, at most two of the same in a row; 0: all
	Rate   float64 // requests a second; those beyond it fail; 0: all fail

	// Effects: how they fail. Several may be set.
	Delay       func(*rand.Rand) time.Duration // before the answer's first byte
	Hang        bool                           // no answer comes until the client ends the connection
	Status      int                            // the status to answer with, and Code and Header
	Code        string                         // the error's name in XML
	Message     string
	Header      http.Header
	Reset       bool // the connection ends before anything is done
	Lose        bool // the request is carried out, and the connection ends without an answer
	Short       bool // the connection ends in the middle of the body
	Change      bool // the object's bytes are replaced by others of the same length just before
	ErrorInside bool // the answer is 200 with an error inside; nothing is done
	Whole       bool // the answer to a range is the whole object, with status 200
	Other       bool // the answer to a range is the range one byte further on, and says so
	RepeatPage  bool // a page of a list is the one before it
	Flip        bool // one byte of an object's body is another one on the way, and its version is the same
}

// SlowDown is S3's answer that requests a lower rate.
func SlowDown() Fault {
	return Fault{Status: http.StatusServiceUnavailable, Code: "SlowDown", Message: "Please reduce your request rate."}
}

// rule is a fault with its state. The server's lock guards it.
type rule struct {
	// seen counts the requests that match, and done those that failed. tokens and at are
	// the state of Rate.
	Fault

	seen, done int
	tokens     float64
	at         time.Time
}

// Counts are sums since the server's start.
type Counts struct {
	// Bytes are those of objects and lists, without headers.
	Requests    [kinds]int64 // by Kind
	Failed      int64        // those that a Fault met
	Connections int64        // accepted
	Received    int64        // bytes of bodies
	Sent        int64        // bytes of bodies
}

// All is the number of requests.
func (c Counts) All() int64 {
	n := int64(0)
	for _, r := range c.Requests {
		n += r
	}
	return n
}

// Config configures a server. The zero value is a server of plain HTTP that does not check credentials.
type Config struct {
	// Address, TLS and Seed are for the server as a whole. Versions, Region and PageSize
	// change how it answers.
	Address  string           // to listen at; "" is a free port of 127.0.0.1
	TLS      *tls.Certificate // nil: plain HTTP
	Seed     uint64           // of faults
	Versions bool             // buckets keep versions
	Region   string           // requests that are signed for another one are redirected; "": any
	PageSize int              // entries of a page of a list; 0 are 1,000
	// Owners are the ids of the only access keys that may do anything in some buckets, by bucket.
	Owners map[string]string
}

// Server is an S3 server with its objects in memory. It checks no signatures. It is safe
// for concurrent use. The counters are atomic, so that requests do not wait for each
// other.
type Server struct {
	cfg      Config
	listener net.Listener
	conns    sync.WaitGroup
	counts   [kinds]atomic.Int64
	failed   atomic.Int64
	accepted atomic.Int64
	received atomic.Int64
	sent     atomic.Int64
	clock    atomic.Int64 // nanoseconds by which it differs from the machine's
	faulty   atomic.Bool  // there are rules
	signer   atomic.Value // string: id of the access key of the newest request that was signed

	// mu guards the fields below.
	mu      sync.RWMutex
	closed  bool
	open    map[net.Conn]struct{}
	buckets map[string]*bucket
	rules   []*rule
	rand    *rand.Rand      // for faults; its sequence depends on the seed and the order of the requests
	expired map[string]bool // ids of access keys
	ids     int
	// inRow counts the newest requests of a kind for a key and a range that a Share made
	// fail, one after another.
	inRow map[request]int
}

// request is what a client repeats after a failure.
type request struct {
	kind      Kind
	key, span string
}

// mostInRow is how many of the same requests in a row a Share makes fail. A client makes a
// request five times. If each failed independently of the one before, one in some hundred
// runs of a test with many requests would fail.
const mostInRow = 2

// bucket is a bucket of the server. The server's lock guards it.
type bucket struct {
	objects map[string]*stored
	old     map[string]*stored // all versions, by key and id with "\x00" between
	keys    []string           // sorted, unless stale
	stale   bool
}

// stored is a version of an object. Its body is never changed: a put makes a new stored,
// so that reads need no lock while they send.
type stored struct {
	body     []byte
	etag, id string
	modified time.Time
	class    string
}

// Start starts a server. The caller closes it.
func Start(cfg Config) (*Server, error) {
	if cfg.Address == "" {
		cfg.Address = "127.0.0.1:0"
	}
	if cfg.PageSize == 0 {
		cfg.PageSize = 1000
	}
	l, err := net.Listen("tcp", cfg.Address) //nolint:noctx // Close ends it
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, listener: l, open: map[net.Conn]struct{}{}, buckets: map[string]*bucket{},
		rand: rand.New(rand.NewPCG(cfg.Seed, 1)), expired: map[string]bool{},
		inRow: map[request]int{}}
	if cfg.TLS != nil {
		s.listener = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*cfg.TLS}, MinVersion: tls.VersionTLS12})
	}
	s.conns.Go(s.accept)
	return s, nil
}

// accept accepts connections until the listener is closed.
func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.accepted.Add(1)
		s.mu.Lock()
		// A connection that is accepted during Close would otherwise never be closed.
		if s.closed {
			s.mu.Unlock()
			_ = c.Close()
			return
		}
		s.open[c] = struct{}{}
		s.conns.Go(func() { s.serve(c) })
		s.mu.Unlock()
	}
}

// Close ends the server and its connections.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	err := s.listener.Close()
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.conns.Wait()
	return err
}

// CutAll closes all connections, like a server that restarts.
func (s *Server) CutAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		_ = c.Close()
	}
}

// Endpoint is the server's URL.
func (s *Server) Endpoint() string {
	scheme := "http"
	if s.cfg.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + s.listener.Addr().String()
}

// URL is the URL of a bucket, as object.Open takes it, without prefix. A missing bucket is made.
func (s *Server) URL(name string) string {
	s.MakeBucket(name)
	return fmt.Sprintf("s3://%s?endpoint=%s", name, s.Endpoint())
}

// MakeBucket makes a bucket, unless it exists.
func (s *Server) MakeBucket(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bucketLocked(name)
}

// bucketLocked returns a bucket, and makes it if needed. The caller holds mu.
func (s *Server) bucketLocked(name string) *bucket {
	b := s.buckets[name]
	if b == nil {
		b = &bucket{objects: map[string]*stored{}, old: map[string]*stored{}}
		s.buckets[name] = b
	}
	return b
}

// PutObject puts an object into a bucket, without faults and counts. It keeps body.
func (s *Server) PutObject(bucket, key string, body []byte) schema.ObjectVersion {
	etag := etagOf(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.putLocked(s.bucketLocked(bucket), key, body, etag)
	return schema.ObjectVersion{ETag: o.etag, ID: o.id}
}

// Renew gives an object another version, with the same bytes.
func (s *Server) Renew(bucket, key, etag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucketLocked(bucket)
	s.putLocked(b, key, b.objects[key].body, etag)
}

// Object is the object of a bucket under a key.
func (s *Server) Object(bucket, key string) (body []byte, found bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := s.buckets[bucket]
	if b == nil || b.objects[key] == nil {
		return nil, false
	}
	return b.objects[key].body, true
}

// DeleteObject removes an object, without faults and counts.
func (s *Server) DeleteObject(bucket, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteLocked(s.bucketLocked(bucket), key)
}

// Keys are those of a bucket, in ascending order.
func (s *Server) Keys(bucket string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bucketLocked(bucket).sorted())
}

// SetClass puts an object into a storage class. One of GLACIER or DEEP_ARCHIVE cannot be read.
func (s *Server) SetClass(bucket, key, class string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.bucketLocked(bucket).objects[key]; o != nil {
		o.class = class
	}
}

// SetClock sets the server's clock ahead of the machine's. The server refuses requests signed by a clock that differs
// from its own by more than 15 minutes.
func (s *Server) SetClock(lead time.Duration) { s.clock.Store(int64(lead)) }

// Expire makes the server refuse an access key as expired.
func (s *Server) Expire(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired[id] = true
}

// SignedBy is the id of the access key that signed the newest request, "" if it was unsigned.
func (s *Server) SignedBy() string {
	id, _ := s.signer.Load().(string)
	return id
}

// Fail adds a fault. If several match a request, the first added one applies.
func (s *Server) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, &rule{Fault: f})
	s.faulty.Store(true)
}

// Heal removes all faults.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
	clear(s.inRow)
	s.faulty.Store(false)
}

// Counts are the counts since the server's start.
func (s *Server) Counts() Counts {
	c := Counts{Failed: s.failed.Load(), Connections: s.accepted.Load(), Received: s.received.Load(), Sent: s.sent.Load()}
	for i := range s.counts {
		c.Requests[i] = s.counts[i].Load()
	}
	return c
}

// etagOf returns the ETag that S3 gives an object of one part: the MD5 of its content.
func etagOf(body []byte) string {
	sum := md5.Sum(body)
	return hex.EncodeToString(sum[:])
}

// now returns the server's clock.
func (s *Server) now() time.Time { return time.Now().Add(time.Duration(s.clock.Load())) }

// putLocked stores an object. The caller holds mu. With Versions, the old one stays
// readable by its id.
func (s *Server) putLocked(b *bucket, key string, body []byte, etag string) *stored {
	o := &stored{body: body, etag: etag, modified: s.now().UTC()}
	if s.cfg.Versions {
		s.ids++
		o.id = fmt.Sprintf("v%d", s.ids)
		b.old[key+"\x00"+o.id] = o
	}
	// Only a new key changes the order of keys.
	if b.objects[key] == nil {
		b.stale = true
	}
	b.objects[key] = o
	return o
}

// deleteLocked removes an object. The caller holds mu.
func (s *Server) deleteLocked(b *bucket, key string) {
	if b.objects[key] != nil {
		delete(b.objects, key)
		b.stale = true
	}
}

// sorted returns the keys of a bucket. It sorts only after a change, because a list of
// many pages would otherwise sort for each page. The caller holds the server's lock.
func (b *bucket) sorted() []string {
	if b.stale {
		b.keys = b.keys[:0]
		for k := range b.objects {
			b.keys = append(b.keys, k)
		}
		sort.Strings(b.keys)
		b.stale = false
	}
	return b.keys
}

// fault returns the first fault that applies to a request, and nil if none does.
func (s *Server) fault(k Kind, key, span string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := request{k, key, span}
	for _, r := range s.rules {
		if len(r.Kinds) > 0 && !slices.Contains(r.Kinds, k) || !strings.HasPrefix(key, r.Prefix) {
			continue
		}
		if r.seen++; r.seen <= r.Skip || r.Times > 0 && r.done >= r.Times {
			continue
		}
		if r.Share > 0 && (s.rand.Float64() >= r.Share || s.inRow[same] == mostInRow) {
			continue
		}
		if r.Rate > 0 && r.below() {
			continue
		}
		r.done++
		if r.Share > 0 {
			s.inRow[same]++
		}
		return &r.Fault
	}
	delete(s.inRow, same)
	return nil
}

// below takes one of the requests that the rate allows, and returns false if there is
// none. It is a token bucket of a tenth of a second.
func (r *rule) below() bool {
	now := time.Now()
	most := max(r.Rate/10, 1)
	if r.at.IsZero() {
		r.tokens = most
	} else {
		r.tokens = min(most, r.tokens+now.Sub(r.at).Seconds()*r.Rate)
	}
	r.at = now
	if r.tokens < 1 {
		return false
	}
	r.tokens--
	return true
}

// exchange is one request. The goroutine of its connection owns it.
type exchange struct {
	// These are the headers that S3 clients use and that the server understands.
	method, path, query, host            string
	span, ifMatch, ifNone, auth, amzDate string
	length                               int64
	closing                              bool

	// place sets these, except fault.
	kind   Kind
	bucket string
	key    string
	body   []byte
	fault  *Fault
}

// errCut makes serve close the connection.
var errCut = errors.New("the connection is to end")

// serve answers the requests of a connection, one after another. The buffer out is reused
// for all answers.
func (s *Server) serve(c net.Conn) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		delete(s.open, c)
		s.mu.Unlock()
	}()
	// Each line of a request's head must fit the buffer, because parse uses slices of it.
	in := bufio.NewReaderSize(c, 8<<10)
	out := make([]byte, 0, 1024)
	for {
		var x exchange
		if err := x.parse(in); err != nil {
			return
		}
		// The body is read before any fault applies, so that a client gets an answer
		// instead of a broken pipe.
		if x.length > 0 {
			x.body = make([]byte, x.length)
			if _, err := io.ReadFull(in, x.body); err != nil {
				return
			}
			s.received.Add(x.length)
		}
		s.place(&x)
		s.counts[x.kind].Add(1)
		if s.faulty.Load() {
			// A list has no key. Its prefix is compared with the fault's.
			key := x.key
			if x.kind == List {
				q, _ := url.ParseQuery(x.query)
				key = q.Get("prefix")
			}
			x.fault = s.fault(x.kind, key, x.span)
		}
		err := s.handle(c, in, &out, &x)
		if err != nil || x.closing {
			return
		}
	}
}

// parse reads the head of a request. It accepts what HTTP clients send, and is no
// validator.
func (x *exchange) parse(in *bufio.Reader) error {
	// The request line: method, target, version.
	line, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	a, b := bytes.IndexByte(line, ' '), bytes.LastIndexByte(line, ' ')
	if a < 0 || b <= a {
		return io.ErrUnexpectedEOF
	}
	x.method = string(line[:a])
	x.path, x.query, _ = strings.Cut(string(line[a+1:b]), "?")
	// Most keys need no unescaping.
	if strings.IndexByte(x.path, '%') >= 0 {
		if x.path, err = url.PathUnescape(x.path); err != nil {
			return err
		}
	}
	for {
		if line, err = in.ReadSlice('\n'); err != nil {
			return err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			return nil
		}
		i := bytes.IndexByte(line, ':')
		if i < 0 {
			continue
		}
		v := bytes.TrimSpace(line[i+1:])
		switch string(bytes.ToLower(line[:i])) {
		case "host":
			x.host = string(v)
		case "range":
			x.span = string(v)
		case "if-match":
			x.ifMatch = strings.Trim(string(v), `"`)
		case "if-none-match":
			x.ifNone = strings.Trim(string(v), `"`)
		case "authorization":
			x.auth = string(v)
		case "x-amz-date":
			x.amzDate = string(v)
		case "content-length":
			if x.length, err = strconv.ParseInt(string(v), 10, 64); err != nil {
				return err
			}
		// The clients of this project always send a length.
		case "transfer-encoding":
			return errors.ErrUnsupported
		case "connection":
			x.closing = bytes.EqualFold(v, []byte("close"))
		}
	}
}

// place sets the bucket, the key and the kind of a request. S3 has the bucket in the path
// or as the first label of the host's name.
func (s *Server) place(x *exchange) {
	// Path style first. A known bucket as the first label of the host wins.
	x.bucket, x.key, _ = strings.Cut(strings.TrimPrefix(x.path, "/"), "/")
	s.mu.RLock()
	if name, _, ok := strings.Cut(x.host, "."); ok && s.buckets[name] != nil {
		x.bucket, x.key = name, strings.TrimPrefix(x.path, "/")
	}
	s.mu.RUnlock()
	switch x.method {
	case http.MethodHead:
		x.kind = Head
	case http.MethodPut:
		x.kind = Put
	case http.MethodDelete:
		x.kind = Delete
	default:
		if x.kind = Get; x.key == "" {
			x.kind = List
		}
	}
}

// handle answers a request. An error ends the connection. Faults that replace the answer
// come first. Those that change it are applied where it is made.
func (s *Server) handle(c net.Conn, in *bufio.Reader, out *[]byte, x *exchange) error {
	if f := x.fault; f != nil {
		s.failed.Add(1)
		if f.Delay != nil {
			s.mu.Lock()
			d := f.Delay(s.rand)
			s.mu.Unlock()
			time.Sleep(d)
		}
		switch {
		case f.Hang:
			// It returns when the client closes the connection.
			_, _ = in.ReadByte()
			return errCut
		case f.Reset:
			return reset(c)
		case f.Status != 0:
			return s.refuse(c, out, x, f.Status, f.Code, f.Message, f.Header)
		case f.ErrorInside:
			return s.reply(c, out, x, http.StatusOK, nil, errorXML("InternalError", "We encountered an internal error."))
		case f.Change:
			s.mu.Lock()
			if o := s.bucketLocked(x.bucket).objects[x.key]; o != nil && len(o.body) > 0 {
				body := bytes.Clone(o.body)
				for i := range body {
					body[i] ^= 0xff
				}
				s.putLocked(s.bucketLocked(x.bucket), x.key, body, etagOf(body))
			}
			s.mu.Unlock()
		}
	}
	if done, err := s.gate(c, out, x); done || err != nil {
		return err
	}
	switch x.kind {
	case Get, Head:
		return s.get(c, out, x)
	case Put:
		return s.put(c, out, x)
	case Delete:
		return s.delete(c, out, x)
	}
	return s.list(c, out, x)
}

// reset makes the close send a TCP reset, which discards data that was not yet read.
func reset(c net.Conn) error {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	return errCut
}

// gate rejects requests with wrong credentials, for another region, or by another clock.
// It does not verify the signature.
func (s *Server) gate(c net.Conn, out *[]byte, x *exchange) (done bool, err error) {
	// Access is checked before signatures, so that a test needs no valid one for it.
	if id := s.cfg.Owners[x.bucket]; id != "" && !strings.Contains(x.auth, "Credential="+id+"/") {
		return true, s.refuse(c, out, x, http.StatusForbidden, "AccessDenied", "Access Denied", nil)
	}
	if x.auth == "" {
		s.signer.Store("")
	} else {
		// AWS4-HMAC-SHA256 Credential=ID/DAY/REGION/s3/aws4_request, …
		// The scope of the credential has the access key, the day and the region (AWS
		// Signature Version 4).
		_, scope, _ := strings.Cut(x.auth, "Credential=")
		part := strings.SplitN(scope, "/", 4)
		if len(part) < 4 {
			return true, s.refuse(c, out, x, http.StatusBadRequest, "AuthorizationHeaderMalformed", "no scope", nil)
		}
		if s.cfg.Region != "" && part[2] != s.cfg.Region {
			return true, s.refuse(c, out, x, http.StatusMovedPermanently, "PermanentRedirect", "The bucket is elsewhere.",
				http.Header{"X-Amz-Bucket-Region": {s.cfg.Region}})
		}
		at, err := time.Parse("20060102T150405Z", x.amzDate)
		if skew := s.now().Sub(at); err != nil || skew.Abs() > 15*time.Minute {
			return true, s.refuse(c, out, x, http.StatusForbidden, "RequestTimeTooSkewed", "The clocks differ too much.", nil)
		}
		s.signer.Store(part[0])
		s.mu.RLock()
		expired := s.expired[part[0]]
		s.mu.RUnlock()
		if expired {
			return true, s.refuse(c, out, x, http.StatusBadRequest, "ExpiredToken", "The provided token has expired.", nil)
		}
	}
	s.mu.RLock()
	found := s.buckets[x.bucket] != nil
	s.mu.RUnlock()
	if !found {
		// PUT of a bucket makes it.
		if x.kind == Put && x.key == "" {
			s.MakeBucket(x.bucket)
			return true, s.reply(c, out, x, http.StatusOK, nil, nil)
		}
		return true, s.refuse(c, out, x, http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist", nil)
	}
	return false, nil
}

// errorXML returns the body of an error, as S3 formats it.
func errorXML(code, message string) []byte {
	return []byte(xml.Header + "<Error><Code>" + code + "</Code><Message>" + message + "</Message></Error>")
}

// refuse answers with an error.
func (s *Server) refuse(c net.Conn, out *[]byte, x *exchange, status int, code, message string, h http.Header) error {
	return s.reply(c, out, x, status, h, errorXML(code, message))
}

// reply sends an answer in one write. HEAD, 204 and 304 have no body.
func (s *Server) reply(c net.Conn, out *[]byte, x *exchange, status int, h http.Header, body []byte) error {
	// One write for head and body: two would be two packets.
	b := fmt.Appendf((*out)[:0], "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	if status != http.StatusNoContent && status != http.StatusNotModified {
		b = fmt.Appendf(b, "Content-Length: %d\r\n", len(body))
	}
	b = s.appendDate(b)
	for k, v := range h {
		b = fmt.Appendf(b, "%s: %s\r\n", k, v[0])
	}
	b = append(b, "\r\n"...)
	if x.method != http.MethodHead {
		b = append(b, body...)
	}
	*out = b[:0]
	_, err := c.Write(b)
	return err
}

// appendDate appends the header Date. Clients compute the difference of the clocks from
// it.
func (s *Server) appendDate(b []byte) []byte {
	b = append(b, "Date: "...)
	b = s.now().UTC().AppendFormat(b, http.TimeFormat)
	return append(b, "\r\n"...)
}

// get answers GET and HEAD of an object. It appends the header by hand: fmt would be a
// large part of a benchmark's CPU time.
func (s *Server) get(c net.Conn, out *[]byte, x *exchange) error {
	s.mu.RLock()
	b := s.buckets[x.bucket]
	// The lock covers only the lookup. A stored is never changed, except for its class.
	o := b.objects[x.key]
	if x.query != "" {
		if q, err := url.ParseQuery(x.query); err == nil && q.Get("versionId") != "" {
			o = b.old[x.key+"\x00"+q.Get("versionId")]
		}
	}
	var class string
	if o != nil {
		class = o.class
	}
	s.mu.RUnlock()
	switch {
	case o == nil:
		return s.refuse(c, out, x, http.StatusNotFound, "NoSuchKey", "The specified key does not exist.", nil)
	case x.ifMatch != "" && x.ifMatch != o.etag && x.ifMatch != "*":
		return s.refuse(c, out, x, http.StatusPreconditionFailed, "PreconditionFailed",
			"At least one of the pre-conditions you specified did not hold", nil)
	case (class == "GLACIER" || class == "DEEP_ARCHIVE") && x.kind == Get:
		return s.refuse(c, out, x, http.StatusForbidden, "InvalidObjectState",
			"The operation is not valid for the object's storage class", nil)
	}
	// A range that begins within the object is cut at its end, as RFC 9110 requires.
	size := int64(len(o.body))
	from, to, partial := int64(0), size, false
	if x.span != "" && (x.fault == nil || !x.fault.Whole) {
		var ok bool
		if from, to, ok = parseSpan(x.span, size); !ok {
			return s.refuse(c, out, x, http.StatusRequestedRangeNotSatisfiable, "InvalidRange",
				"The requested range is not satisfiable", http.Header{"Content-Range": {fmt.Sprintf("bytes */%d", size)}})
		}
		if x.fault != nil && x.fault.Other {
			from, to = min(from+1, size-1), min(to+1, size)
		}
		partial = true
	}
	// The head is built in the connection's buffer.
	h := (*out)[:0]
	if partial {
		h = append(h, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes "...)
		h = strconv.AppendInt(h, from, 10)
		h = append(h, '-')
		h = strconv.AppendInt(h, to-1, 10)
		h = append(h, '/')
		h = strconv.AppendInt(h, size, 10)
	} else {
		h = append(h, "HTTP/1.1 200 OK"...)
	}
	h = append(h, "\r\nContent-Length: "...)
	h = strconv.AppendInt(h, to-from, 10)
	h = append(h, "\r\nETag: \""...)
	h = append(h, o.etag...)
	h = append(h, "\"\r\nAccept-Ranges: bytes\r\nLast-Modified: "...)
	h = o.modified.AppendFormat(h, http.TimeFormat)
	h = append(h, "\r\n"...)
	if o.id != "" {
		h = append(append(append(h, "x-amz-version-id: "...), o.id...), "\r\n"...)
	}
	if class != "" {
		h = append(append(append(h, "x-amz-storage-class: "...), class...), "\r\n"...)
	}
	h = append(s.appendDate(h), "\r\n"...)
	*out = h[:0]
	body := o.body[from:to]
	if x.method == http.MethodHead {
		body = nil
	}
	if x.fault != nil && x.fault.Lose {
		return errCut
	}
	if x.fault != nil && x.fault.Flip && len(body) > 0 {
		body = bytes.Clone(body)
		body[len(body)/2] ^= 0x10
	}
	// The head promises the whole body, so that the client must notice the missing half.
	cut := x.fault != nil && x.fault.Short && len(body) > 0
	if cut {
		body = body[:len(body)/2]
	}
	s.sent.Add(int64(len(body)))
	var err error
	// Without TLS, one system call writes head and body without a copy.
	if _, plain := c.(*net.TCPConn); plain && len(body) > 0 {
		parts := net.Buffers{h, body}
		_, err = parts.WriteTo(c)
	} else {
		// Head and beginning go into one record of TLS.
		n := min(len(body), 8<<10)
		h = append(h, body[:n]...)
		*out = h[:0]
		if _, err = c.Write(h); err == nil && n < len(body) {
			_, err = c.Write(body[n:])
		}
	}
	if cut {
		return errCut
	}
	return err
}

// parseSpan parses "bytes=A-B", "bytes=A-" or "bytes=-N" (RFC 9110, 14.1.2) and returns a
// half-open range. S3 does not support several ranges in one request.
func parseSpan(span string, size int64) (from, to int64, ok bool) {
	span, ok = strings.CutPrefix(span, "bytes=")
	a, b, dash := strings.Cut(span, "-")
	if !ok || !dash || strings.Contains(span, ",") {
		return 0, 0, false
	}
	to = size
	if a == "" {
		n, err := strconv.ParseInt(b, 10, 64)
		return max(size-n, 0), size, err == nil && n > 0 && size > 0
	}
	from, err := strconv.ParseInt(a, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if b != "" {
		last, err := strconv.ParseInt(b, 10, 64)
		if err != nil || last < from {
			return 0, 0, false
		}
		to = min(last+1, size)
	}
	return from, to, from < size
}

// put answers PUT of an object, with the conditions If-Match and If-None-Match. Check and
// write are one step under the lock.
func (s *Server) put(c net.Conn, out *[]byte, x *exchange) error {
	if x.key == "" {
		return s.reply(c, out, x, http.StatusOK, nil, nil)
	}
	etag := etagOf(x.body)
	s.mu.Lock()
	b := s.bucketLocked(x.bucket)
	// S3 answers 412 if the object differs from the condition, and 404 if there is none.
	have := b.objects[x.key]
	status := http.StatusOK
	var o *stored
	switch {
	case x.ifNone == "*" && have != nil, x.ifMatch != "" && have != nil && have.etag != x.ifMatch:
		status = http.StatusPreconditionFailed
	case x.ifMatch != "" && have == nil:
		status = http.StatusNotFound
	default:
		o = s.putLocked(b, x.key, x.body, etag)
	}
	s.mu.Unlock()
	if x.fault != nil && x.fault.Lose {
		return errCut
	}
	switch status {
	case http.StatusPreconditionFailed:
		return s.refuse(c, out, x, status, "PreconditionFailed", "At least one of the pre-conditions you specified did "+
			"not hold", nil)
	case http.StatusNotFound:
		return s.refuse(c, out, x, status, "NoSuchKey", "The specified key does not exist.", nil)
	}
	h := http.Header{"ETag": {`"` + etag + `"`}}
	if o.id != "" {
		h["x-amz-version-id"] = []string{o.id}
	}
	return s.reply(c, out, x, status, h, nil)
}

// delete answers DELETE. S3 answers 204 also if there was no object.
func (s *Server) delete(c net.Conn, out *[]byte, x *exchange) error {
	s.mu.Lock()
	s.deleteLocked(s.bucketLocked(x.bucket), x.key)
	s.mu.Unlock()
	if x.fault != nil && x.fault.Lose {
		return errCut
	}
	return s.reply(c, out, x, http.StatusNoContent, nil, nil)
}

// list answers ListObjectsV2. Entries are keys, or common prefixes up to the delimiter.
// Both count for the size of a page.
func (s *Server) list(c net.Conn, out *[]byte, x *exchange) error {
	q, _ := url.ParseQuery(x.query)
	// A client may ask for smaller pages, and not for larger ones.
	most := s.cfg.PageSize
	if v, err := strconv.Atoi(q.Get("max-keys")); err == nil {
		most = min(v, most)
	}
	prefix, delimiter, after := q.Get("prefix"), q.Get("delimiter"), q.Get("start-after")
	// A token has the position after which the page began, and the last entry of the
	// page. The fault RepeatPage continues at the first of them.
	if token := q.Get("continuation-token"); token != "" {
		raw, _ := hex.DecodeString(token)
		before, last, _ := strings.Cut(string(raw), "\x00")
		if after = last; x.fault != nil && x.fault.RepeatPage {
			after = before
		}
	}
	// XML 1.0 cannot have all characters of keys. Clients therefore ask for URL encoding.
	encode := url.QueryEscape
	if q.Get("encoding-type") != "url" {
		encode = func(s string) string {
			var b strings.Builder
			_ = xml.EscapeText(&b, []byte(s)) // a Builder does not fail
			return b.String()
		}
	}
	body := append(make([]byte, 0, 200_000),
		xml.Header+`<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`...)
	// n counts the entries of the page, last is the newest entry, and next is the token
	// of the following page.
	n, last, next := 0, after, ""
	s.mu.Lock()
	b := s.bucketLocked(x.bucket)
	keys := b.sorted()
	// The keys are sorted, so that the search skips everything before the page.
	for i := sort.SearchStrings(keys, max(after, prefix)); i < len(keys); i++ {
		key := keys[i]
		if !strings.HasPrefix(key, prefix) {
			break
		}
		if key <= after {
			continue
		}
		common := ""
		if delimiter != "" {
			if at := strings.Index(key[len(prefix):], delimiter); at >= 0 {
				common = key[:len(prefix)+at+len(delimiter)]
			}
		}
		// beyond is greater than each key that begins with the common prefix. The loop
		// continues there, and does not visit the keys one by one.
		beyond := common + "\xff\xff\xff\xff"
		if common != "" && common == after { // a page ended with it
			i = sort.SearchStrings(keys, beyond) - 1
			continue
		}
		// The page is full and another entry exists: only then the list is truncated.
		if n == most {
			next = hex.EncodeToString([]byte(after + "\x00" + last))
			break
		}
		n++
		if common != "" {
			body = append(append(append(body, "<CommonPrefixes><Prefix>"...), encode(common)...),
				"</Prefix></CommonPrefixes>"...)
			last = common
			i = sort.SearchStrings(keys, beyond) - 1
			continue
		}
		o := b.objects[key]
		// Objects without a class are in the default one.
		class := o.class
		if class == "" {
			class = "STANDARD"
		}
		body = append(append(append(body, "<Contents><Key>"...), encode(key)...), "</Key><LastModified>"...)
		body = o.modified.AppendFormat(body, "2006-01-02T15:04:05.000Z")
		body = append(append(append(body, "</LastModified><ETag>&quot;"...), o.etag...), "&quot;</ETag><Size>"...)
		body = strconv.AppendInt(body, int64(len(o.body)), 10)
		body = append(append(append(body, "</Size><StorageClass>"...), class...), "</StorageClass></Contents>"...)
		last = key
	}
	s.mu.Unlock()
	body = fmt.Appendf(body,
		"<Name>%s</Name><Prefix>%s</Prefix><KeyCount>%d</KeyCount><MaxKeys>%d</MaxKeys><IsTruncated>%t</IsTruncated>",
		x.bucket, encode(prefix), n, most, next != "")
	if next != "" {
		body = fmt.Appendf(body, "<NextContinuationToken>%s</NextContinuationToken>", next)
	}
	if q.Get("encoding-type") == "url" {
		body = append(body, "<EncodingType>url</EncodingType>"...)
	}
	body = append(body, "</ListBucketResult>"...)
	s.sent.Add(int64(len(body)))
	if x.fault != nil && x.fault.Short {
		_, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:len(body)/2])
		return errors.Join(err, errCut)
	}
	return s.reply(c, out, x, http.StatusOK, http.Header{"Content-Type": {"application/xml"}}, body)
}
