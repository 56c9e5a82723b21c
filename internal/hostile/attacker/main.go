// Command attacker sends all cases of package hostile to a server of this machine, again
// and again, for a time. It prints a JSON line for each case: the answer, the time, and
// what was wrong with the answer.
//
//	go run ./internal/hostile/attacker -addr 127.0.0.1:8815 -seconds 60
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"bowstring/internal/hostile"
)

// heavy limits cases that keep the server busy as long as they may. The other cases would
// otherwise not come to their turn.
const heavy = 2 * time.Second

// main parses the flags and attacks until the time is over. Wrong answers are in the
// output and do not change the exit status, because a script judges them.
func main() {
	addr := flag.String("addr", "", "host:port of the server, on this machine")
	admin := flag.String("admin", "", "host:port of the server's admin listener, on this machine")
	only := flag.String("case", "", "send only the cases with this in their names")
	seconds := flag.Float64("seconds", 60, "how long")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*seconds*float64(time.Second)))
	defer cancel()
	if err := attack(ctx, *addr, *admin, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // the context's timer ends with the process
	}
}

// line is the result of a case.
type line struct {
	Case    string  `json:"case"`
	Answer  string  `json:"answer"`
	Began   float64 `json:"began"` // in seconds since 1970
	Seconds float64 `json:"seconds"`
	Wrong   string  `json:"wrong,omitempty"`
}

// attack runs the cases in their order until ctx ends. It connects from 127.0.0.2, so
// that the limits by address do not affect honest clients at 127.0.0.1.
func attack(ctx context.Context, addr, admin, only string) error {
	target := hostile.Target{Addr: addr, From: net.IPv4(127, 0, 0, 2), Admin: admin}
	out := json.NewEncoder(os.Stdout)
	for ctx.Err() == nil {
		for _, c := range hostile.Cases() {
			if ctx.Err() != nil {
				break
			}
			if c.Admin && admin == "" || !strings.Contains(c.Name, only) {
				continue
			}
			l := one(ctx, c, target)
			if err := out.Encode(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// one runs a case and checks the answer. An answer after the end of the whole attack is
// not judged, because the deadline itself changes it.
func one(ctx context.Context, c hostile.Case, target hostile.Target) line {
	whole := ctx
	if c.Heavy {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, heavy)
		defer cancel()
	}
	began := time.Now()
	answer := c.Run(ctx, target)
	l := line{Case: c.Name, Answer: fmt.Sprintf("%.200v", answer), Began: float64(began.UnixMilli()) / 1e3,
		Seconds: time.Since(began).Seconds()}
	end, _ := whole.Deadline() // its timer may be late
	if err := c.Check(answer); err != nil && time.Now().Before(end) {
		l.Wrong = err.Error()
	}
	return l
}
