//go:build objects

package bucket

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/maintenance"
	"bowstring/internal/objecttest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

const (
	// stressVariable is for how long TestRealVersityStress runs, as 10m.
	stressVariable = "BOWSTRING_STRESS"
	// stressJob holds, as JSON, what a process of the test has to do.
	stressJob = "BOWSTRING_STRESS_JOB"

	stressProcesses, stressWriters = 8, 4 // writers in each process
	stressDatasets                 = 3
)

// job is what a process of writers does until its standard input ends.
type job struct {
	Name     string // no other process has it
	URL      string
	Keys     object.Keys
	Seed     uint64
	Log      string // a file of events
	CopiesAt string // URL of the store that is copied to
}

// event is what a writer was about to do, or, with Done, what a call of its store has reported as done.
type event struct {
	Do      string // import, drop, tag, copy, collect; or fail, with why in Token
	Dataset string `json:",omitempty"`
	Token   string `json:",omitempty"` // of an import: the snapshot's source
	Number  int64  `json:",omitempty"`
	Done    bool   `json:",omitempty"`
}

func stressOptions(keys object.Keys) Options {
	o := testOptions()
	o.Bucket = object.Options{Keys: &keys}
	o.Renew, o.Lapse, o.SegmentBytes = 500*time.Millisecond, 15*time.Second, 200<<10
	return o
}

// TestRealVersityStress: 32 writers in 8 processes import, tag, drop, copy and collect in
// one store, at a real server and over links that cut answers after the server has had
// the request, while processes are killed and replaced. Everything that a call reported
// as done is there, once; there is nothing that no writer did; every blob has its bytes.
func TestRealVersityStress(t *testing.T) {
	lasts := 4 * time.Second
	if s := os.Getenv(stressVariable); s != "" {
		var err error
		if lasts, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d, for %s", seed, lasts)
	rng := rand.New(rand.NewPCG(seed, 0))
	real := objecttest.Versity(t)
	place, settings, _ := strings.Cut(real.URL, "?")
	direct := func(name string) string { return place + "/" + name + "?" + settings }
	opts := stressOptions(real.Keys)
	if _, err := Init(t.Context(), direct("store"), InitOptions{Options: opts}); err != nil {
		t.Fatal(err)
	}
	foundWith(t, direct("copies"), opts)
	_, to, _ := strings.Cut(settings, "http://")
	links := &cutting{to: to, share: 0.01, rng: rand.New(rand.NewPCG(seed, 1))}
	through := links.listen(t)
	over := func(name string) string { return strings.Replace(direct(name), to, through, 1) }

	dir := t.TempDir()
	started := 0
	start := func() *writers {
		started++
		return startWriters(t, job{Name: fmt.Sprintf("p%d", started), URL: over("store"), CopiesAt: over("copies"),
			Keys: real.Keys, Seed: rng.Uint64(), Log: filepath.Join(dir, fmt.Sprintf("p%d.log", started))})
	}
	running := make([]*writers, stressProcesses)
	for i := range running {
		running[i] = start()
	}
	kills := 0
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		time.Sleep(min(time.Duration(float64(lasts)*(0.1+0.1*rng.Float64())), 5*time.Second))
		i := rng.IntN(len(running))
		running[i].kill()
		kills++
		running[i] = start()
	}
	for _, w := range running {
		w.stop(t)
	}
	links.quiet.Store(true)
	var events []event
	for i := range started {
		events = append(events, readEvents(t, filepath.Join(dir, fmt.Sprintf("p%d.log", i+1)))...)
	}
	s, copies := open(t, direct("store"), opts), open(t, direct("copies"), opts)
	done := judge(t, s, copies, events)
	t.Logf("%d processes were killed and %d answers cut; done: %v", kills, links.cuts.Load(), done)
	if done["import"] == 0 || links.cuts.Load() == 0 {
		t.Error("nothing was imported, or no answer was cut")
	}
	// A collection removes what killed processes have left; committed snapshots stay.
	for _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil; _, err = s.GC(t.Context(), store.GCOptions{}, nil) {
		if !errors.Is(err, schema.ErrUnavailable) { // one that died in a collection has it until it lapses
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	judge(t, s, copies, events)
	report, err := s.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil || report.DeadBlobs != 0 {
		t.Errorf("a second collection frees %d blobs: %v", report.DeadBlobs, err)
	}
}

// judge compares the state of the store with the writers' events, and returns how often
// each kind of event happened.
func judge(t *testing.T, s, copies *Store, events []event) map[string]int {
	t.Helper()
	type fate struct {
		number                          int64 // 0: no writer got an answer
		dropping, dropped, tag, copying bool
		copied                          bool
	}
	done := map[string]int{}
	fates, byNumber := map[string]*fate{}, map[string]*fate{}
	for _, e := range events {
		if e.Do == "fail" {
			t.Errorf("a writer failed: %s", e.Token)
			continue
		}
		if e.Done {
			done[e.Do]++
		}
		if e.Do == "import" {
			if fates[e.Token] == nil {
				fates[e.Token] = &fate{}
			}
			if e.Done {
				fates[e.Token].number = e.Number
				byNumber[fmt.Sprint(e.Dataset, "@", e.Number)] = fates[e.Token]
			}
		}
	}
	for _, e := range events {
		f := byNumber[fmt.Sprint(e.Dataset, "@", e.Number)]
		switch e.Do {
		case "drop":
			f.dropping, f.dropped = true, f.dropped || e.Done
		case "tag":
			f.tag = f.tag || e.Done
		case "copy":
			f.copying, f.copied = true, f.copied || e.Done
		}
	}
	there, tags := snapshotsOf(t, s)
	for token, numbers := range there {
		f := fates[token]
		switch {
		case f == nil:
			t.Errorf("snapshots %v of %q, which no writer has made", numbers, token)
		case len(numbers) != 1:
			t.Errorf("%q is there %d times: %v", token, len(numbers), numbers)
		case f.number != 0 && numbers[0] != f.number:
			t.Errorf("%q is snapshot %d, its writer got %d", token, numbers[0], f.number)
		case f.dropped:
			t.Errorf("%q is there, though it was dropped", token)
		}
	}
	for token, f := range fates {
		if f.number != 0 && !f.dropping && len(there[token]) == 0 {
			t.Errorf("%q is lost: snapshot %d", token, f.number)
		}
		if f.tag && tags[token] != 1 {
			t.Errorf("%q has %d tags, its writer's call reported one", token, tags[token])
		}
	}
	copied, _ := snapshotsOf(t, copies)
	for token, numbers := range copied {
		if f := fates[token]; f == nil || !f.copying || len(numbers) != 1 {
			t.Errorf("%q was copied %d times", token, len(numbers))
		}
	}
	for token, f := range fates {
		if f.copied && len(copied[token]) == 0 {
			t.Errorf("the copy of %q is lost", token)
		}
	}
	return done
}

// snapshotsOf reads all that is in a store: numbers of snapshots by their sources, and how many tags each has.
func snapshotsOf(t *testing.T, s *Store) (numbers map[string][]int64, tags map[string]int) {
	t.Helper()
	list, err := s.Datasets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	numbers, tags = map[string][]int64{}, map[string]int{}
	for _, d := range list {
		for _, number := range d.Snapshots {
			snap, err := s.Snapshot(t.Context(), d.Name, number)
			if err != nil {
				t.Fatal(err)
			}
			numbers[snap.Source] = append(numbers[snap.Source], number)
			blobs, err := storetest.Read(t.Context(), s, snap)
			if err != nil || !slices.EqualFunc(blobs, contents(snap.Source), slices.Equal[[]byte]) {
				t.Errorf("%s@%d of %q has other bytes, or none: %v", d.Name, number, snap.Source, err)
			}
			for _, tag := range d.Tags {
				if tag.Snapshot == number {
					tags[snap.Source]++
				}
			}
		}
	}
	return numbers, tags
}

// contents are the blobs of an import.
func contents(token string) [][]byte {
	list := make([][]byte, 6)
	for i := range list {
		list[i] = []byte(strings.Repeat(fmt.Sprintf("%s %d. ", token, i), 2000))
	}
	return list
}

func readEvents(t *testing.T, path string) (events []event) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			if !strings.HasSuffix(line, "\n") {
				continue // its process was killed
			}
			t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

// writers are a process of writers.
type writers struct {
	process *exec.Cmd
	input   io.WriteCloser
}

func startWriters(t *testing.T, j job) *writers {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	w := &writers{process: exec.Command(os.Args[0], "-test.run=^TestRealVersityWriters$", "-test.timeout=0")}
	w.process.Env = append(os.Environ(), stressJob+"="+string(text))
	if w.input, err = w.process.StdinPipe(); err == nil {
		err = w.process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.kill)
	return w
}

// kill ends the process as a power cut would. It may be called again.
func (w *writers) kill() {
	if w.process.ProcessState == nil {
		_ = w.process.Process.Kill()
		_ = w.process.Wait()
	}
}

// stop has the process end in order.
func (w *writers) stop(t *testing.T) {
	t.Helper()
	_ = w.input.Close()
	if err := w.process.Wait(); err != nil {
		t.Errorf("a process of writers ended: %v", err)
	}
}

// TestRealVersityWriters is a process of TestRealVersityStress.
func TestRealVersityWriters(t *testing.T) {
	text := os.Getenv(stressJob)
	if text == "" {
		t.Skip("no test of its own")
	}
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(j.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	over := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		close(over)
	}()
	var opened [2]*Store
	for i, url := range []string{j.URL, j.CopiesAt} {
		for opened[i] == nil {
			if opened[i], err = Open(t.Context(), url, stressOptions(j.Keys)); err != nil && !errors.Is(err, schema.ErrUnavailable) {
				t.Fatal(err)
			}
		}
	}
	var all sync.WaitGroup
	for n := range stressWriters {
		w := &writer{name: fmt.Sprintf("%s-%d", j.Name, n), store: opened[0], copies: opened[1], log: log,
			rng: rand.New(rand.NewPCG(j.Seed, uint64(n))), tokens: map[int64]string{}, dataset: fmt.Sprint("d", n%stressDatasets)}
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					w.step(t.Context())
				}
			}
		})
	}
	all.Wait()
	<-over
	for _, s := range opened {
		_ = s.Close() // the link may be cut
	}
}

// writer is one of the writers of a process.
type writer struct {
	name, dataset string
	store, copies *Store
	log           *os.File
	rng           *rand.Rand
	made          int
	tokens        map[int64]string // snapshots that it has made, and done nothing else with
}

func (w *writer) say(e event) {
	line, _ := json.Marshal(e) // never fails
	_, _ = w.log.Write(append(line, '\n'))
}

// step does one thing, and prints it before and after.
func (w *writer) step(ctx context.Context) {
	e := event{Do: "import", Dataset: w.dataset}
	p := w.rng.Float64()
	if numbers := slices.Sorted(maps.Keys(w.tokens)); len(numbers) > 0 && p < 0.45 {
		e.Number = numbers[w.rng.IntN(len(numbers))]
		switch {
		case p < 0.15:
			e.Do = "drop"
		case p < 0.3:
			e.Do = "tag"
		default:
			e.Do = "copy"
		}
	} else if p > 0.97 {
		e.Do = "collect"
	} else {
		w.made++
		e.Token = fmt.Sprintf("%s-%d", w.name, w.made)
	}
	w.say(e)
	var err error
	switch e.Do {
	case "import":
		e.Number, err = w.imports(ctx, e.Token)
	case "drop":
		delete(w.tokens, e.Number)
		err = w.store.Drop(ctx, w.dataset, e.Number)
	case "tag":
		token := w.tokens[e.Number]
		delete(w.tokens, e.Number)
		err = w.store.Tag(ctx, w.dataset, "t-"+token, e.Number)
	case "copy":
		delete(w.tokens, e.Number)
		var snap *schema.Snapshot
		if snap, err = w.store.Snapshot(ctx, w.dataset, e.Number); err == nil {
			_, err = maintenance.Copy(ctx, w.store, w.copies, []*schema.Snapshot{snap}, maintenance.CopyOptions{Renumber: true})
		}
	case "collect":
		_, err = w.store.GC(ctx, store.GCOptions{}, nil)
	}
	switch {
	case err == nil:
		if e.Done = true; e.Do == "import" {
			w.tokens[e.Number] = e.Token
		}
		w.say(e)
	case errors.Is(err, schema.ErrUnavailable), errors.Is(err, schema.ErrConflict) && e.Do != "drop" && e.Do != "tag":
		// It may have been done, or not.
	default:
		w.say(event{Do: "fail", Token: fmt.Sprintf("%s: %s of %s@%d %s: %v", w.name, e.Do, e.Dataset, e.Number, e.Token, err)})
	}
}

func (w *writer) imports(ctx context.Context, token string) (number int64, err error) {
	in, err := w.store.Begin(ctx, w.dataset)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	snap, err := storetest.Put(ctx, in, contents(token), 4)
	if err != nil {
		return 0, err
	}
	snap.Source = token
	for {
		newest, err := w.store.Snapshot(ctx, w.dataset, 0)
		switch {
		case err == nil:
			snap.Parent = newest.Number
		case errors.Is(err, schema.ErrNotFound):
			snap.Parent = 0
		default:
			return 0, err
		}
		made, err := in.Commit(ctx, snap)
		if err == nil {
			return made.Number, nil
		}
		if !errors.Is(err, schema.ErrConflict) {
			return 0, err
		}
	}
}

// cutting is a relay of connections to a server, which cuts some of them when the server answers, or before a request
// is passed on.
type cutting struct {
	to    string
	share float64
	quiet atomic.Bool
	cuts  atomic.Int64

	mu  sync.Mutex
	rng *rand.Rand
}

func (c *cutting) cut() bool {
	if c.quiet.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.Float64() < c.share
}

// listen returns the address of the relay, which ends with the test.
func (c *cutting) listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	pass := func(to, from net.Conn, answers bool) {
		defer func() {
			_, _ = to.Close(), from.Close()
			mu.Lock()
			defer mu.Unlock()
			delete(conns, from)
		}()
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			if n > 0 && answers && c.cut() {
				c.cuts.Add(1)
				return
			}
			if _, failed := to.Write(b[:n]); failed != nil || err != nil {
				return
			}
		}
	}
	all.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", c.to)
			if err != nil {
				_ = a.Close()
				continue
			}
			mu.Lock()
			conns[a], conns[b] = true, true
			mu.Unlock()
			all.Go(func() { pass(b, a, false) })
			all.Go(func() { pass(a, b, true) })
		}
	})
	return l.Addr().String()
}
