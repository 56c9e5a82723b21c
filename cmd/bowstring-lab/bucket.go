package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bowstring/cmd/bowstring/command"
	"bowstring/internal/objecttest"
)

// bucketCmd is bowstring-lab bucket.
type bucketCmd struct {
	Root  string        `arg:"" optional:"" type:"existingdir" help:"Directory whose folders are the buckets at first."`
	Delay time.Duration `placeholder:"DURATION" help:"Answer each request so much later."`
	Made  int           `placeholder:"N" help:"Make a bucket called made, of N small sounds in 100 folders."`
}

// Help is shown below the summary.
func (*bucketCmd) Help() string {
	return `Serves buckets in memory by the protocol of S3, whatever the credentials are. It prints its endpoint, and ends with the
standard input.`
}

// Run serves until the standard input ends.
func (c *bucketCmd) Run(ctx context.Context, app *command.App) error {
	s, err := objecttest.Start(objecttest.Config{})
	if err != nil {
		return err
	}
	err = c.serve(ctx, app, s)
	return errors.Join(err, s.Close())
}

func (c *bucketCmd) serve(ctx context.Context, app *command.App, s *objecttest.Server) error {
	if c.Root != "" {
		if err := c.fill(s); err != nil {
			return err
		}
	}
	for i := range c.Made {
		s.PutObject("made", fmt.Sprintf("train/%02d/%07d.wav", i*100/c.Made, i), tone(i))
	}
	if c.Delay > 0 {
		s.Fail(objecttest.Fault{Delay: func(*rand.Rand) time.Duration { return c.Delay }})
	}
	if err := app.Printf("%s\n", s.Endpoint()); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil // what waits for the input ends with the process
	}
}

// fill puts the files below the root into buckets.
func (c *bucketCmd) fill(s *objecttest.Server) error {
	return filepath.WalkDir(c.Root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(c.Root, p)
		if err != nil {
			return err
		}
		bucket, key, inside := strings.Cut(filepath.ToSlash(rel), "/")
		switch {
		case d.IsDir() && bucket != ".":
			s.MakeBucket(bucket)
		case !d.IsDir() && inside:
			body, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			s.PutObject(bucket, key, body)
		}
		return nil
	})
}

// tone is a sound of a few samples that only one number has.
func tone(i int) []byte {
	const head = "RIFF\x2c\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\x08\x00\x00\x00"
	return binary.LittleEndian.AppendUint64([]byte(head), uint64(i))
}
