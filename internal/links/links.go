// Package links connects the processes of a cluster on one machine through links of a
// given latency and rate. The links count bytes, and can be cut while they are in use.
// Tests and benchmarks use them.
//
// A proxy is an address that forwards to a server through a link. Several proxies may
// share a link and its rate. A proxy knows the client process of a connection if
// processes were named. It does not know what a connection carries.
//
// Begin reading at [ProxySet]. [ProxySet.Run] makes it usable from another language.
// Package delay has the model of a link.
package links

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/internal/delay"
	"bowstring/schema"
)

// Anybody is the name of a process that was not named.
const Anybody = ""

// Fault is what a proxy does to connections instead of forwarding.
type Fault string

// None, Cut and Hold are the faults.
const (
	None Fault = ""
	// Cut closes connections, and new ones as soon as they are made. Both ends notice.
	Cut Fault = "cut"
	// Hold holds data back until it is over, like a network that loses all packets: the ends are not notified.
	Hold Fault = "hold"
)

// ProxySet has all links and proxies. It is safe for concurrent use. The caller closes
// it.
type ProxySet struct {
	// mu guards the fields below. It is not held while a proxy works.
	mu      sync.Mutex
	closed  bool
	links   map[string]*delay.Link // by name; shared by proxies
	proxies map[string]*proxy      // by name
	names   map[int]string         // names of processes by pid
}

// NewProxySet returns a set without links.
func NewProxySet() *ProxySet {
	return &ProxySet{links: map[string]*delay.Link{}, proxies: map[string]*proxy{}, names: map[int]string{}}
}

// errClosed is the error of a closed set.
var errClosed = fmt.Errorf("%w: the links are closed", schema.ErrUnavailable)

// Link makes a link. A used name is an error.
func (b *ProxySet) Link(name string, config delay.Config) error {
	if err := schema.CheckName("link", name); err != nil {
		return err
	}
	if err := config.Check(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return errClosed
	case b.links[name] != nil:
		return fmt.Errorf("%w: link %s", schema.ErrExists, name)
	}
	b.links[name] = delay.New(config)
	return nil
}

// Open makes a proxy that forwards through a link to the server at an address, HOST:PORT, and returns the proxy's
// address.
func (b *ProxySet) Open(name, link, to string) (address string, err error) {
	if err := schema.CheckName("proxy", name); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return "", errClosed
	case b.proxies[name] != nil:
		return "", fmt.Errorf("%w: proxy %s", schema.ErrExists, name)
	case b.links[link] == nil:
		return "", fmt.Errorf("%w: link %s", schema.ErrNotFound, link)
	}
	d, err := newProxy(b.links[link], to, b.who)
	if err != nil {
		return "", err
	}
	b.proxies[name] = d
	return d.address(), nil
}

// Name names a process: its later connections count under that name.
func (b *ProxySet) Name(pid int, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names[pid] = name
}

// who returns the name of the process at the other end of a connection. It searches the
// kernel's table for the socket, and then the open files of the named processes.
func (b *ProxySet) who(remote, local string) string {
	b.mu.Lock()
	names := maps.Clone(b.names)
	b.mu.Unlock()
	if len(names) == 0 {
		// Otherwise each connection would cost a walk through all processes.
		return Anybody
	}
	socket, ok := socketOf(remote, local)
	if !ok {
		return Anybody
	}
	for pid, name := range names {
		if holds(pid, socket) {
			return name
		}
	}
	return Anybody
}

// Set sets the fault of a process's data at a proxy, instead of the previous one. It
// applies to open connections too.
func (b *ProxySet) Set(name, from string, t Fault) error {
	if t != None && t != Cut && t != Hold {
		return &schema.FieldError{Field: "fault", Got: schema.Quote(string(t)), Want: `"cut", "hold" or ""`}
	}
	b.mu.Lock()
	d := b.proxies[name]
	b.mu.Unlock()
	if d == nil {
		return fmt.Errorf("%w: proxy %s", schema.ErrNotFound, name)
	}
	d.set(from, t)
	return nil
}

// Count counts a process's use of a proxy: connections, and bytes to the server and back.
type Count struct {
	Proxy       string `json:"proxy"`
	From        string `json:"from"`
	Connections int64  `json:"connections"`
	To          int64  `json:"to_bytes"`
	Back        int64  `json:"back_bytes"`
}

// Counts returns the counts of all proxies so far, by proxy and process.
func (b *ProxySet) Counts() []Count {
	b.mu.Lock()
	// The counters are atomic, so that the lock covers only the copy of the map.
	proxies := maps.Clone(b.proxies)
	b.mu.Unlock()
	list := []Count{}
	for name, d := range proxies {
		for from, n := range d.counts() {
			list = append(list, Count{name, from, n.connections.Load(), n.to.Load(), n.back.Load()})
		}
	}
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Proxy, b.Proxy), cmp.Compare(a.From, b.From))
	})
	return list
}

// Close cuts everything, and waits for all goroutines. Proxies stop first. Data that
// waits in a link is released only when the link closes, so that the waiting comes last.
func (b *ProxySet) Close() error {
	b.mu.Lock()
	b.closed = true
	proxies, links := b.proxies, b.links
	b.proxies, b.links = nil, nil
	b.mu.Unlock()
	var errs []error
	for _, d := range proxies {
		errs = append(errs, d.stop())
	}
	for _, l := range links {
		errs = append(errs, l.Close()) // unblocks the proxies
	}
	for _, d := range proxies {
		d.running.Wait()
	}
	return errors.Join(errs...)
}

// Command is a request to a set, as a line of JSON. Exactly one of its fields is set.
type Command struct {
	Link  *LinkCommand  `json:"link,omitempty"`
	Open  *OpenCommand  `json:"open,omitempty"`
	Name  *NameCommand  `json:"name,omitempty"`
	Set   *SetCommand   `json:"set,omitempty"`
	Count *CountCommand `json:"count,omitempty"`
}

// LinkCommand makes a link.
type LinkCommand struct {
	Name   string  `json:"name"`
	RTT    int64   `json:"rtt_us"`      // in microseconds
	Jitter int64   `json:"jitter_us"`   // in microseconds
	PerSec int64   `json:"bytes_per_s"` // in each direction; 0: no limit
	Window int64   `json:"window"`      // bytes of a connection that may be unacknowledged; 0: no limit
	Loss   float64 `json:"loss"`        // share of packets; needs a window
}

// OpenCommand makes a proxy.
type OpenCommand struct {
	Proxy string `json:"proxy"`
	Link  string `json:"link"`
	To    string `json:"to"` // HOST:PORT
}

// NameCommand names a process.
type NameCommand struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// SetCommand sets the fault of a process's data at a proxy.
type SetCommand struct {
	Proxy string `json:"proxy"`
	From  string `json:"from"`
	Fault Fault  `json:"fault"`
}

// CountCommand requests the counts.
type CountCommand struct{}

// Reply is the result of a command.
type Reply struct {
	Address string  `json:"address,omitempty"` // of the new proxy
	Counts  []Count `json:"counts,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// maxCommand is the most bytes of a command. It bounds the buffer of the reader.
const maxCommand = 64 << 10

// Run reads commands from the lines of in, as JSON, and answers each with a line, until
// in ends. An error of a command is in its answer and does not end Run.
func (b *ProxySet) Run(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxCommand)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		reply, err := b.do(lines.Bytes())
		if err != nil {
			reply.Error = err.Error()
		}
		if err := answers.Encode(reply); err != nil {
			return fmt.Errorf("answer a command: %w", err)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read a command: %w", err)
	}
	return nil
}

// do executes one command.
func (b *ProxySet) do(line []byte) (Reply, error) {
	var c Command
	if err := schema.DecodeJSON("command", line, &c); err != nil {
		return Reply{}, err
	}
	switch {
	case c.Link != nil:
		return Reply{}, b.Link(c.Link.Name, delay.Config{
			RTT: microseconds(c.Link.RTT), Jitter: microseconds(c.Link.Jitter), Bandwidth: c.Link.PerSec,
			Window: c.Link.Window, Loss: c.Link.Loss,
		})
	case c.Open != nil:
		address, err := b.Open(c.Open.Proxy, c.Open.Link, c.Open.To)
		return Reply{Address: address}, err
	case c.Name != nil:
		b.Name(c.Name.PID, c.Name.Name)
		return Reply{}, nil
	case c.Set != nil:
		return Reply{}, b.Set(c.Set.Proxy, c.Set.From, c.Set.Fault)
	case c.Count != nil:
		return Reply{Counts: b.Counts()}, nil
	}
	return Reply{}, &schema.FieldError{Field: "command", Got: schema.Quote(string(line)),
		Want: "one of link, open, name, set and count"}
}

// microseconds returns a duration. It is at most a day, which links reject as too long,
// so that a larger number cannot overflow into a valid one.
func microseconds(n int64) time.Duration {
	if n > int64(24*time.Hour/time.Microsecond) {
		return 24 * time.Hour
	}
	return time.Duration(n) * time.Microsecond
}

// proxy forwards to a server through a link. newProxy starts its goroutines, and stop
// ends them.
type proxy struct {
	link     *delay.Link
	to       string
	who      func(remote, local string) string
	listener net.Listener
	ctx      context.Context //nolint:containedctx // done when the proxy is closed
	end      context.CancelFunc
	running  sync.WaitGroup

	// mu guards the fields below.
	mu      sync.Mutex
	fault   map[string]Fault
	changed chan struct{}       // closed when fault changes
	conns   map[net.Conn]string // both ends of each connection, with the name of the process
	passed  map[string]*passed  // by name of the process; entries are never removed
}

// passed counts a process's use of the proxy.
type passed struct{ connections, to, back atomic.Int64 }

// newProxy listens on a free port and begins to forward.
func newProxy(link *delay.Link, to string, who func(remote, local string) string) (*proxy, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &proxy{
		link: link, to: to, who: who, listener: listener,
		fault: map[string]Fault{}, changed: make(chan struct{}), conns: map[net.Conn]string{},
		passed: map[string]*passed{},
	}
	d.ctx, d.end = context.WithCancel(context.Background())
	d.running.Go(d.accept)
	return d, nil
}

func (d *proxy) address() string { return d.listener.Addr().String() }

// accept accepts connections until the proxy is stopped. Other errors of Accept concern
// one connection.
func (d *proxy) accept() {
	for {
		c, err := d.listener.Accept()
		switch {
		case err == nil:
			d.running.Go(func() { d.serve(c) })
		case d.ctx.Err() != nil:
			return
		}
	}
}

// serve forwards a connection until one of its ends is closed.
func (d *proxy) serve(c net.Conn) {
	defer c.Close()
	from := d.who(c.RemoteAddr().String(), c.LocalAddr().String())
	if !d.keep(c, from) {
		return
	}
	defer d.forget(c)
	server, err := d.link.DialContext(d.ctx, "tcp", d.to)
	if err != nil {
		return
	}
	defer server.Close()
	// The proxy may have been cut while the dial waited for the link.
	if !d.keep(server, from) {
		return
	}
	defer d.forget(server)
	n := d.of(from)
	n.connections.Add(1)
	var back sync.WaitGroup
	back.Go(func() { d.carry(from, c, server, &n.back) })
	d.carry(from, server, c, &n.to)
	back.Wait()
}

// pieceBytes is the most bytes of one read.
const pieceBytes = 64 << 10

// carry forwards data from source until either end is closed, and then closes both. It
// checks the fault after the read, so that data which is already on its way is held too.
func (d *proxy) carry(from string, to, source net.Conn, count *atomic.Int64) {
	defer to.Close()
	defer source.Close()
	b := make([]byte, pieceBytes)
	for {
		n, err := source.Read(b)
		if !d.pass(from) {
			return
		}
		if n > 0 {
			count.Add(int64(n))
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits while a process's data is held. It returns false if the connection must end.
func (d *proxy) pass(from string) bool {
	for {
		d.mu.Lock()
		t, changed := d.fault[from], d.changed
		d.mu.Unlock()
		switch {
		case d.ctx.Err() != nil || t == Cut:
			return false
		case t == None:
			return true
		}
		select {
		case <-changed:
		case <-d.ctx.Done():
		}
	}
}

// set changes the fault of a process, and wakes the goroutines that wait in pass.
func (d *proxy) set(from string, t Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault[from] = t
	close(d.changed)
	d.changed = make(chan struct{})
	if t == Cut {
		d.closeLocked(func(of string) bool { return of == from })
	}
}

// closeLocked closes connections by the name of their process. The caller holds mu.
func (d *proxy) closeLocked(which func(from string) bool) {
	for c, of := range d.conns {
		if which(of) {
			_ = c.Close() // its goroutines end by the error
		}
	}
}

// keep records a connection, unless the proxy is closed or cut for the process.
func (d *proxy) keep(c net.Conn, from string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil || d.fault[from] == Cut {
		return false
	}
	d.conns[c] = from
	return true
}

// forget removes a connection that has ended.
func (d *proxy) forget(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// of returns the counters of a process, and makes them if needed.
func (d *proxy) of(from string) *passed {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.passed[from] == nil {
		d.passed[from] = &passed{}
	}
	return d.passed[from]
}

// counts returns the counters by process. The map is a copy, and the counters are live.
func (d *proxy) counts() map[string]*passed {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[string]*passed, len(d.passed))
	for from, n := range d.passed {
		all[from] = n
	}
	return all
}

// stop closes the proxy and its connections. It does not wait for the goroutines, because
// they may wait for the link: see ProxySet.Close.
func (d *proxy) stop() error {
	d.end()
	err := d.listener.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeLocked(func(string) bool { return true })
	return err
}
