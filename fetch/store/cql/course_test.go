package cql

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gocql/gocql"
)

// ringPolicy replaces the driver's token-aware policy: the hosts of a query are those of
// the ring, from its place on.
type ringPolicy struct {
	gocql.HostSelectionPolicy // nothing else is called
	hosts                     []*gocql.HostInfo
}

type plainHost struct {
	gocql.SelectedHost
	info *gocql.HostInfo
}

func (h plainHost) Info() *gocql.HostInfo { return h.info }
func (h plainHost) Mark(error)            {}

func (p *ringPolicy) Pick(q gocql.ExecutableQuery) gocql.NextHost {
	at, _ := q.Context().Value(placeKey{}).(int)
	left := len(p.hosts)
	return func() gocql.SelectedHost {
		if left == 0 {
			return nil
		}
		h := plainHost{info: p.hosts[at%len(p.hosts)]}
		at, left = at+1, left-1
		return h
	}
}

type placeKey struct{}

type plainQuery struct {
	gocql.ExecutableQuery
	ctx context.Context
}

func (q plainQuery) Context() context.Context { return q.ctx }

// course is a steering over a ring of hosts, with a clock of the test's.
type course struct {
	*steering
	t     testing.TB
	hosts []*gocql.HostInfo
	clock time.Duration
	asked []string // silent hosts
	log   bytes.Buffer
}

func newCourse(t testing.TB, hosts, replicas int) *course {
	c := &course{t: t}
	for range hosts {
		c.hosts = append(c.hosts, new(gocql.HostInfo))
	}
	c.steering = &steering{
		name:                c.name,
		HostSelectionPolicy: &ringPolicy{hosts: c.hosts},
		log:                 slog.New(slog.NewTextHandler(&c.log, nil)),
		now:                 func() time.Duration { return c.clock },
		ask:                 func(h *host, _ *reading) { c.asked = append(c.asked, c.name(h.info)) },
	}
	c.replicas.Store(int32(replicas))
	return c
}

func (c *course) name(h *gocql.HostInfo) string { return strconv.Itoa(slices.Index(c.hosts, h)) }

// read begins one at a place of the ring.
func (c *course) read(place, attempt int) (*reading, gocql.NextHost) {
	ctx := context.WithValue(context.Background(), placeKey{}, place)
	r := newReading(ctx, "", 0)
	r.route.attempt = attempt
	return r, c.Pick(plainQuery{ctx: r})
}

// order lists the hosts that a read would ask, if none of them has a connection.
func (c *course) order(place, attempt int) string {
	_, next := c.read(place, attempt)
	return c.names(next)
}

func (c *course) names(next gocql.NextHost) string {
	var names []string
	for h := next(); h != nil; h = next() {
		names = append(names, c.name(h.Info()))
	}
	return strings.Join(names, " ")
}

// take makes a read ask its first host, and get the answer after a time.
func (c *course) take(place int, after time.Duration) {
	c.t.Helper()
	r, next := c.read(place, 0)
	if next() == nil {
		c.t.Fatal("no host")
	}
	c.clock += after
	r.route.end(nil)
}

func (c *course) want(got, want, what string) {
	c.t.Helper()
	if got != want {
		c.t.Errorf("%s: hosts %s, want %s", what, got, want)
	}
}
