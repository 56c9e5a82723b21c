//go:build cassandra

package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// cast are the processes of a run, by their roles: most have their like to meet.
var cast = []string{
	"importer-1", "importer-2", "importer-3", "importer-4", "importer-5", "dropper-1", "tagger-1", "tagger-2",
	"collector-1", "collector-2", "reader-1", "reader-2",
}

// patient are those of cast that keep imports open while others collect.
var patient = []string{"importer-4", "importer-5"}

// workers are the processes of a run.
type workers struct {
	t       *testing.T
	dir     string // of logs; the history is in a folder of it
	address string

	mu      sync.Mutex
	rand    *rand.Rand
	running map[string]*worker // by role
	count   map[string]int
}

type worker struct {
	name  string
	cmd   *exec.Cmd
	input io.Closer // its end ends the process
	log   *os.File
	ended chan struct{}
	err   error // how; to be read when it has ended
	kill  bool  // it was killed
}

func startWorkers(t *testing.T, dir, address string, seed uint64) *workers {
	w := &workers{
		t: t, dir: dir, address: address, rand: rand.New(rand.NewPCG(seed, 3)),
		running: map[string]*worker{}, count: map[string]int{},
	}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, p := range w.running {
			_ = p.cmd.Process.Kill() // it may have ended
			<-p.ended
		}
	})
	for _, role := range cast {
		if err := w.replace(role); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// replace kills a role's process, if there is one, and starts another.
func (w *workers) replace(role string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.running[role]; old != nil {
		old.kill = true
		_ = old.cmd.Process.Kill() // it may have ended
		<-old.ended
		w.endedWith(old)
	}
	w.count[role]++
	kind, number, _ := strings.Cut(role, "-")
	config := processConfig{
		Name: fmt.Sprintf("%s.%d", role, w.count[role]), Role: kind,
		History: filepath.Join(w.dir, "history"), Address: w.address,
		// The taggers share snapshots out by the last bit.
		Seed:    w.rand.Uint64()&^1 | uint64(number[0]&1),
		Patient: slices.Contains(patient, role),
	}
	if w.rand.IntN(3) == 0 {
		config.ClockBy = time.Duration(w.rand.Int64N(int64(10*time.Minute))) - 5*time.Minute
	}
	if w.rand.IntN(4) == 0 {
		config.RTT = time.Duration(1+w.rand.IntN(40)) * time.Millisecond
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	p := &worker{name: config.Name, cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), envProcess+"="+string(text))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.log, err = os.Create(filepath.Join(w.dir, config.Name+".log")); err != nil {
		return err
	}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
		_ = p.log.Close()
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	w.running[role] = p
	return nil
}

// endedWith reports a process that has ended by itself with an error. The caller holds
// mu.
func (w *workers) endedWith(p *worker) {
	if p.err != nil && !p.kill {
		text, _ := os.ReadFile(p.log.Name())
		w.t.Errorf("%s ended: %v: %s", p.name, p.err, text[max(0, len(text)-2000):])
	}
}

func (w *workers) signal(role string, sig syscall.Signal) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[role].cmd.Process.Signal(sig)
}

// stop has all processes end, and returns when they have. One that does not within the time is killed.
func (w *workers) stop(within time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.running {
		_ = p.input.Close() // it may have ended
	}
	late := time.After(within)
	for _, p := range w.running {
		select {
		case <-p.ended:
		case <-late:
			w.t.Logf("%s does not end, and is killed", p.name)
			for _, p := range w.running {
				p.kill = true
				_ = p.cmd.Process.Kill()
			}
			<-p.ended
			late = nil
		}
		w.endedWith(p)
	}
	clear(w.running)
}
