package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"bowstring/cmd/bowstring/command"
	"bowstring/internal/objecttest"
)

// objectsCmd is bowstring-lab objects.
type objectsCmd struct {
	Listen  string        `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Where to listen."`
	Root    string        `placeholder:"DIR" help:"A directory whose directories are buckets, and their files objects."`
	TLSCert string        `placeholder:"FILE" help:"A certificate in PEM. Without it the server speaks plain HTTP."`
	TLSKey  string        `placeholder:"FILE" help:"The certificate's private key."`
	Latency time.Duration `help:"How long the first byte of each answer takes."`
	Refuse  float64       `placeholder:"SHARE" help:"The share of requests that are answered with 503."`
	Rate    float64       `placeholder:"N" help:"Requests a second. Those above are answered with 503."`
	Lose    float64       `placeholder:"SHARE" help:"The share of writes whose answer is lost after they were made."`
	Seed    uint64        `help:"Of what is drawn."`
}

// Help is shown below the summary.
func (*objectsCmd) Help() string {
	return `Serves S3 from memory, at some 30 microseconds of processor time for a range of 100 KB, so that a reader is
measured and not the server. It looks at no signatures. The first line on the standard output is the server's URL; at its
end the server writes how many requests and bytes there were, as JSON.`
}

// Run serves until the process is to end.
func (c *objectsCmd) Run(ctx context.Context, app *command.App) error {
	cfg := objecttest.Config{Address: c.Listen, Seed: c.Seed}
	if c.TLSCert != "" {
		cert, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return err
		}
		cfg.TLS = &cert
	}
	s, err := objecttest.Start(cfg)
	if err != nil {
		return err
	}
	if c.Root != "" {
		if err := s.AddFolder(c.Root); err != nil {
			_ = s.Close()
			return err
		}
	}
	if c.Refuse > 0 {
		f := objecttest.SlowDown()
		f.Share = c.Refuse
		s.Fail(f)
	}
	if c.Rate > 0 {
		f := objecttest.SlowDown()
		f.Rate = c.Rate
		s.Fail(f)
	}
	if c.Lose > 0 {
		s.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Lose: true, Share: c.Lose})
	}
	if c.Latency > 0 {
		s.Fail(objecttest.Fault{Delay: func(*rand.Rand) time.Duration { return c.Latency }})
	}
	fmt.Fprintln(app.Stdout, s.Endpoint())
	<-ctx.Done()
	counts := s.Counts()
	err = s.Close()
	out := map[string]int64{"connections": counts.Connections, "sent": counts.Sent, "received": counts.Received}
	for kind, n := range counts.Requests {
		out[objecttest.Kind(kind).String()] = n
	}
	if e := json.NewEncoder(app.Stdout).Encode(out); err == nil {
		err = e
	}
	return err
}
