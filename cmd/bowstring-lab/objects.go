package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
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
	Made    int           `placeholder:"N" help:"Make a bucket called made, of N small sounds in 100 folders."`
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
	return `Serves S3 from memory, so that a reader is measured and not the server. It looks at no signatures. The first line on
the standard output is the server's URL. When it ends, the server writes how many requests and bytes there were, as JSON.`
}

// Run serves until ctx ends, and then prints the counters. The objects and faults are in
// place before it prints the URL, which a script waits for.
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
	// Consecutive numbers share a folder, so that the 100 folders have equal sizes.
	for i := range c.Made {
		s.PutObject("made", fmt.Sprintf("train/%02d/%07d.wav", i*100/c.Made, i), tone(i))
	}
	// Each flag becomes a fault of its own, so that flags can be combined.
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
	if err := app.Printf("%s\n", s.Endpoint()); err != nil {
		return errors.Join(err, s.Close())
	}
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

// tone returns a WAV file of four samples, which encode i. Each object therefore has
// different content, and a reader that mixes up two objects is found. The format is PCM,
// one channel, 16 bits, 8,000 Hz.
func tone(i int) []byte {
	const head = "RIFF\x2c\x00\x00\x00WAVE" +
		"fmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00" +
		"data\x08\x00\x00\x00"
	return binary.LittleEndian.AppendUint64([]byte(head), uint64(i))
}
