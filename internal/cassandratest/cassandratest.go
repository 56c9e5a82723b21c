// Package cassandratest runs real Cassandra nodes for tests, by the script
// tests/cassandra/cassandra.sh, which says what is missing where it cannot.
//
// A test binary starts a node when its first test asks for one, and kills it in
// TestMain:
//
//	func TestMain(m *testing.M) {
//		code := m.Run()
//		cassandratest.Stop()
//		os.Exit(code)
//	}
//
// Should the binary die, its nodes die with it.
package cassandratest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bowstring/internal/freeport"
)

// EnvAddr names a node that runs already, as HOST:PORT, to be used in place of
// the one that [Shared] would start. It spares developers the wait.
const EnvAddr = "BOWSTRING_CASSANDRA_ADDR"

// startTimeout is for a busy machine; a node takes some seconds on an idle one.
const startTimeout = 5 * time.Minute

// Options of a node.
type Options struct {
	// IP of the loopback interface. Default: 127.0.0.1.
	IP string
	// Port and StoragePort; free ones by default.
	Port, StoragePort int
	// Seeds are the members of a cluster, as IP:STORAGE_PORT,...; by default the
	// node is alone.
	Seeds string
	// Token is the end of the node's part of the ring, needed in a cluster.
	Token string
	// Auth wants the password "cassandra" of the user "cassandra".
	Auth bool
	// TLS is a folder made by [NewKeys]: clients must use TLS and show its certificate.
	TLS string
	// Heap of the server. Default: 256m.
	Heap string
	// Listen is where the node listens, by default IP. Other nodes get IP as its address: a proxy may listen there.
	Listen string
	// Patience is the timeout of requests. Default: 10 s.
	Patience time.Duration
	// Clock is a file that says by how much the node's clock is wrong, and may change.
	Clock string
	// Log is a file for what the node prints, besides the end of it that errors show.
	Log string
}

// Node is a running server. Addr, URI and Pid are safe for concurrent use. Only one
// goroutine at a time may kill, crash, restart or await a node.
type Node struct {
	IP   string
	Port int

	options Options // with all defaults filled in
	dir     string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process is gone
	log     *tail
}

// Addr is where the node answers.
func (n *Node) Addr() string { return net.JoinHostPort(n.IP, strconv.Itoa(n.Port)) }

// URI is the address of a store in a keyspace on the node.
func (n *Node) URI(keyspace, parameters string) string {
	uri := fmt.Sprintf("cql://%s/%s", n.Addr(), keyspace)
	if parameters != "" {
		uri += "?" + parameters
	}
	return uri
}

// Pid of the server, to stop and continue it.
func (n *Node) Pid() int { return n.cmd.Process.Pid }

// Signal sends the server a signal.
func (n *Node) Signal(sig syscall.Signal) error { return n.cmd.Process.Signal(sig) }

// Kill ends the server at once, and removes its data.
func (n *Node) Kill() {
	if n.cmd == nil {
		return
	}
	n.Crash()
	_ = os.RemoveAll(n.dir)
}

// Crash ends the server at once, and leaves its data to [Node.Restart].
func (n *Node) Crash() {
	_ = n.cmd.Process.Kill() // it may have ended by itself
	<-n.ended
}

// Restart starts the server again after it has ended. It does not wait until it
// answers, which [Node.Wait] does. One goroutine at a time may do these to a node.
func (n *Node) Restart() error { return n.launch() }

// Wait returns when the node answers.
func (n *Node) Wait(ctx context.Context) error { return n.wait(ctx, n.options.TLS != "") }

// shared is the binary's own node. Starting one takes seconds, so that tests share it and
// use keyspaces of their own.
var shared struct {
	once sync.Once
	node *Node
	err  error
}

// running has all nodes that Stop has to kill.
var running struct {
	sync.Mutex
	nodes []*Node
}

// Shared returns the binary's own node, alone and without passwords.
func Shared(t testing.TB) *Node {
	t.Helper()
	shared.once.Do(func() {
		if addr := os.Getenv(EnvAddr); addr != "" {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				shared.err = fmt.Errorf("%s: %w", EnvAddr, err)
				return
			}
			n, err := strconv.Atoi(port)
			shared.node, shared.err = &Node{IP: host, Port: n, options: Options{Listen: host}}, err
			return
		}
		shared.node, shared.err = start(Options{})
	})
	if shared.err != nil {
		t.Fatalf("no Cassandra to test with: %v", shared.err)
	}
	return shared.node
}

// Start runs another node until the end of the test. [Node.Restart] keeps its options.
func Start(t testing.TB, opts Options) *Node {
	t.Helper()
	n, err := start(opts)
	if err != nil {
		t.Fatalf("no Cassandra to test with: %v", err)
	}
	t.Cleanup(n.Kill)
	return n
}

// StartCluster runs three nodes, on 127.0.0.1 to 127.0.0.3, until the end of the test.
func StartCluster(t testing.TB) [3]*Node {
	t.Helper()
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = freeport.On("127.0.0.1"); err != nil {
			t.Fatal(err)
		}
	}
	var each [3]Options
	for i := range each {
		each[i] = Options{IP: fmt.Sprintf("127.0.0.%d", i+1), Port: ports[0], StoragePort: ports[1]}
	}
	return StartClusterOf(t, each)
}

// StartClusterOf runs three nodes until the end of the test. Each says its IP and
// both of its ports; Seeds and Token are filled in.
func StartClusterOf(t testing.TB, each [3]Options) [3]*Node {
	t.Helper()
	var seeds []string
	for _, o := range each {
		seeds = append(seeds, net.JoinHostPort(o.IP, strconv.Itoa(o.StoragePort)))
	}
	tokens := []string{"-9223372036854775808", "-3074457345618258603", "3074457345618258602"}
	for i := range each {
		each[i].Seeds, each[i].Token = strings.Join(seeds, ","), tokens[i]
	}
	nodes, err := startTogether(each)
	// A node that does not hear from the others for half a minute ends, and on a busy machine they may take that long
	// to start.
	for try := 1; err != nil && try < clusterTries; try++ {
		t.Logf("no Cassandra cluster at the %d. try: %v", try, err)
		nodes, err = startTogether(each)
	}
	if err != nil {
		t.Fatalf("no Cassandra cluster to test with: %v", err)
	}
	for _, n := range nodes {
		t.Cleanup(n.Kill)
	}
	return nodes
}

// clusterTries is how often the start of a cluster is tried.
const clusterTries = 3

// startTogether starts three nodes at the same time, because each waits for the others. If one fails, it kills all.
func startTogether(each [3]Options) (nodes [3]*Node, err error) {
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i, o := range each {
		wg.Go(func() { nodes[i], errs[i] = start(o) })
	}
	wg.Wait()
	if err = errors.Join(errs...); err != nil {
		for _, n := range nodes {
			if n != nil {
				n.Kill()
			}
		}
	}
	return nodes, err
}

// Stop kills all nodes. It is called by TestMain.
func Stop() {
	running.Lock()
	nodes := running.nodes
	running.nodes = nil
	running.Unlock()
	for _, n := range nodes {
		n.Kill()
	}
}

// script is the path of cassandra.sh, from where this file was compiled.
func script() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "tests", "cassandra", "cassandra.sh")
}

// start fills in the defaults, starts a node and waits until it answers. The download of
// Cassandra, if it is missing, is not part of startTimeout.
func start(opts Options) (*Node, error) {
	if opts.IP == "" {
		opts.IP = "127.0.0.1"
	}
	if opts.Listen == "" {
		opts.Listen = opts.IP
	}
	for _, port := range []*int{&opts.Port, &opts.StoragePort} {
		if *port == 0 {
			var err error
			if *port, err = freeport.On(opts.IP); err != nil {
				return nil, err
			}
		}
	}
	if out, err := exec.CommandContext(context.Background(), script(), "fetch").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	n := &Node{IP: opts.IP, Port: opts.Port, options: opts, log: &tail{}}
	var err error
	if n.dir, err = os.MkdirTemp("", "bowstring-cassandra-"); err != nil {
		return nil, err
	}
	if err := n.launch(); err != nil {
		return nil, err
	}
	running.Lock()
	running.nodes = append(running.nodes, n)
	running.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := n.Wait(ctx); err != nil {
		n.Kill()
		return nil, err
	}
	return n, nil
}

// launch starts the process and returns when it runs. The node need not answer yet.
func (n *Node) launch() error {
	opts := n.options
	n.cmd = exec.CommandContext(context.Background(), script(), "run", n.dir) // Kill ends it
	n.cmd.Env = append(os.Environ(), "IP="+n.IP, "LISTEN="+opts.Listen, "PORT="+strconv.Itoa(n.Port),
		"STORAGE_PORT="+strconv.Itoa(opts.StoragePort), "TLS="+opts.TLS, "CLOCK="+opts.Clock)
	if opts.Seeds != "" {
		n.cmd.Env = append(n.cmd.Env, "SEEDS="+opts.Seeds, "TOKEN="+opts.Token, "RING_DELAY=3000")
	}
	if opts.Auth {
		n.cmd.Env = append(n.cmd.Env, "AUTH=1")
	}
	if opts.Heap != "" {
		n.cmd.Env = append(n.cmd.Env, "HEAP="+opts.Heap)
	}
	if opts.Patience != 0 {
		n.cmd.Env = append(n.cmd.Env, fmt.Sprintf("PATIENCE=%dms", opts.Patience.Milliseconds()))
	}
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var file *os.File
	if opts.Log != "" {
		var err error
		if file, err = os.OpenFile(opts.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return err
		}
		out := io.MultiWriter(n.log, file)
		n.cmd.Stdout, n.cmd.Stderr = out, out
	}
	started := make(chan error)
	cmd, ended := n.cmd, make(chan struct{})
	n.ended = ended
	go func() {
		// The kernel sends the signal when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its output says how it ended
		}
		if file != nil {
			_ = file.Close() // what it lacks is in no test
		}
		close(ended)
	}()
	return <-started
}

// wait polls until the node answers: it has no other way to say that it does.
func (n *Node) wait(ctx context.Context, encrypted bool) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !n.answers(ctx, encrypted) {
		select {
		case <-tick.C:
		case <-n.ended:
			return fmt.Errorf("the node ended; its last words:\n%s", n.log)
		case <-ctx.Done():
			return fmt.Errorf("the node does not answer at %s; its last words:\n%s", n.Addr(), n.log)
		}
	}
	return nil
}

// answers asks for the server's options, by an OPTIONS frame of version 4 of the native
// protocol. An encrypted port only has to accept the connection: the client's certificate
// is not known here.
func (n *Node) answers(ctx context.Context, encrypted bool) bool {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(n.options.Listen, strconv.Itoa(n.Port)))
	if err != nil {
		return false
	}
	defer c.Close()
	if encrypted {
		return true
	}
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte{4, 0, 0, 0, 5, 0, 0, 0, 0}); err != nil {
		return false
	}
	var header [9]byte
	_, err = io.ReadFull(c, header[:])
	return err == nil && header[4] == 6 // SUPPORTED
}

// tail keeps the last 8 KiB of what is written to it, for errors. A node logs megabytes.
// It is safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (w *tail) Write(p []byte) (int, error) {
	const most = 8 << 10
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, p...)
	w.buf = w.buf[max(0, len(w.buf)-most):]
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.buf)
}
