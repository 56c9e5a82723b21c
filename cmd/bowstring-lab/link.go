package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"bowstring/cmd/bowstring/command"
	"bowstring/internal/delay"
	"bowstring/spill/replay"
)

// linkFlags describe the link to a store. Commands embed them. All zero means that the
// user asked for no link.
type linkFlags struct {
	RTT       time.Duration `name:"rtt" placeholder:"DURATION" help:"Round trip to the store."`
	Jitter    time.Duration `placeholder:"DURATION" help:"Most that a round trip takes longer."`
	Bandwidth command.Size  `placeholder:"SIZE" help:"Bytes a second to and from the store, such as 400MB (default: no limit)."`
	Window    command.Size  `placeholder:"SIZE" help:"Bytes of one connection that may be unacknowledged, as TCP's window; a store in a directory has none (default: no limit)."`
	SlowStart bool          `help:"Begin each connection with a window of 14,600 bytes, which doubles each round trip."`
	Seed      uint64        `placeholder:"SEED" help:"Seed of what is drawn: jitter and slow reads."`
	SlowShare float64       `placeholder:"SHARE" help:"Share of the reads that are slow, such as 0.01; of a store in a directory only."`
	SlowBy    time.Duration `placeholder:"DURATION" help:"How much longer these take."`
	Clock     string        `placeholder:"FILE" help:"File of a duration, such as 90s or -1m30s, by which the clock is wrong that the leases in the store go by; read each second. Of a store in a database or a bucket only."`
}

// config returns the link that the flags describe.
func (f *linkFlags) config() delay.Config {
	return delay.Config{
		RTT: f.RTT, Jitter: f.Jitter, Bandwidth: int64(f.Bandwidth), Window: int64(f.Window),
		SlowStart: f.SlowStart, Seed: f.Seed, SlowShare: f.SlowShare, SlowBy: f.SlowBy,
	}
}

// check is part of the Validate of the commands with these flags. It checks what does not
// depend on the store; over checks the rest.
func (f *linkFlags) check() error {
	config := f.config()
	if err := config.Check(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	// One alone would silently change nothing.
	if (f.SlowShare > 0) != (f.SlowBy > 0) {
		return errors.New("--slow-share and --slow-by only mean something together")
	}
	return nil
}

// over creates the link to the store and calls run with it in place. Without any flag of
// the link it creates one only if always is set. It returns an error if the kind of store
// does not support a flag. A flag without effect would falsify a measurement.
func (f *linkFlags) over(app *command.App, globals *command.Globals, always bool, run func() error) error {
	asked := *f != linkFlags{}
	switch store := globals.Store; {
	case store == "" && asked:
		return errors.New("the flags of the link are about the way to a store in this process: use --store instead of " +
			"--server, or give them to bowstring-lab serve")
	case command.IsRemote(store) && f.SlowShare > 0:
		return fmt.Errorf("--slow-share: only reads from a store in a directory can be made slow; --jitter makes those "+
			"of %s vary", store)
	case store != "" && !command.IsRemote(store) && (f.Window > 0 || f.SlowStart):
		return errors.New("--window and --slow-start are about connections, and there are none to a store in a " +
			"directory; --bandwidth limits it")
	case store != "" && !command.IsRemote(store) && f.Clock != "":
		return errors.New("--clock is about leases that processes have in a store, and one in a directory has one " +
			"process alone")
	case !asked && !always:
		return run()
	}
	// run returns when all users of the link have ended, so that Close interrupts none.
	link := delay.New(f.config())
	clock := &fileClock{path: f.Clock}
	if err := clock.read(); err != nil {
		return errors.Join(fmt.Errorf("--clock: %w", err), link.Close())
	}
	app.Far = far{link, clock}
	return errors.Join(run(), link.Close())
}

// far is a link to a store, with a clock of its own.
type far struct {
	*delay.Link
	*fileClock
}

// fileClock is a clock that is wrong by the duration in a file. Without a path it is
// right. It is safe for concurrent use.
//
// A program in Go reads the clock without the C library, so a library that is loaded
// before it cannot change its clock, as it does for Cassandra.
type fileClock struct {
	path string

	mu   sync.Mutex
	next time.Time     // when the file is read again
	by   time.Duration // what it said last
}

// Now returns the wrong time. If the file cannot be read, the clock stays wrong by as much
// as before.
func (c *fileClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.path != "" && now.After(c.next) {
		_ = c.readLocked(now)
	}
	// Round strips the monotonic reading, which would hide a step from comparisons.
	return now.Round(0).Add(c.by)
}

// read reads the file, if there is one.
func (c *fileClock) read() error {
	if c.path == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readLocked(time.Now())
}

func (c *fileClock) readLocked(now time.Time) error {
	c.next = now.Add(time.Second)
	text, err := os.ReadFile(c.path)
	if err != nil {
		return err
	}
	by, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	c.by = by
	return nil
}

// serveCmd is bowstring-lab serve.
type serveCmd struct {
	command.ServeCmd
	linkFlags
	Reads  int    `name:"max-reads" placeholder:"N" help:"Most reads in flight to the store (default: as many as pay)."`
	Policy string `name:"spill-policy" enum:"next-use,lru,fifo,static,score" default:"next-use" help:"What the spill keeps, when not all can be: ${enum} (default: ${default})."`
}

// Validate is called by kong.
func (c *serveCmd) Validate() error {
	return errors.Join(c.ServeCmd.Validate(), c.check())
}

// Run serves until a signal ends ctx. Without a flag the link exists and has no latency.
// A series of measurements can then have 0 as one of its values and differ by the latency
// alone.
func (c *serveCmd) Run(ctx context.Context, app *command.App, globals *command.Globals) error {
	if err := c.Own(app); err != nil {
		return err
	}
	c.MaxReads = c.Reads
	// next-use is the policy of serve itself. It stays on that code path, so that the
	// default here measures the product and not the replay of it.
	if c.Policy != "next-use" {
		var err error
		if c.SpillPolicy, err = replay.ParsePolicy(c.Policy, nil); err != nil {
			return err
		}
	}
	return c.over(app, globals, true, func() error { return c.ServeCmd.Run(ctx, app) })
}
