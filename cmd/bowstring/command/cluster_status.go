package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/layout"
	"bowstring/fetch/members"
)

// ClusterCmd is bowstring cluster.
type ClusterCmd struct {
	Status  ClusterStatusCmd  `cmd:"" help:"List the nodes of a cluster and what they own."`
	Drain   ClusterDrainCmd   `cmd:"" help:"Have a node leave its cluster: its streams move, its cache is handed over, and it ends."`
	Undrain ClusterUndrainCmd `cmd:"" help:"Have a node stay that was told to drain and has not ended."`
}

// ClusterStatusCmd is bowstring cluster status.
type ClusterStatusCmd struct {
	Name string `arg:"" help:"The cluster, as serve --cluster names it."`
	JSON bool   `name:"json" help:"Print a JSON object."`
}

// Help is shown below the summary.
func (*ClusterStatusCmd) Help() string {
	return `The nodes are those whose leases are in the store now; one that dies is gone from it after ten seconds. What they own is a part of
all keys, if everything fits; which part of a dataset they have cached, only they know.`
}

// clusterStatus is what status prints.
type clusterStatus struct {
	Cluster string       `json:"cluster"`
	Layout  string       `json:"layout,omitempty"` // that these nodes would have now, where all fits
	Nodes   []nodeStatus `json:"nodes"`
}

type nodeStatus struct {
	layout.Node
	Share    float64           `json:"share"`              // of all keys
	Draining *members.Draining `json:"draining,omitempty"` // how far it is, if it leaves
}

// state says in a word or two how a node stands.
func (n *nodeStatus) state() string {
	d := n.Draining
	switch {
	case d == nil:
		return "active"
	case d.Done:
		return "drained"
	}
	return fmt.Sprintf("draining for %s: %s, handed over %s of %s", time.Since(d.Since).Round(time.Second),
		plural(int64(d.Streams), "stream"),
		humanize.IBytes(uint64(d.Bytes)), humanize.IBytes(uint64(d.Held)))
}

// Run lists the nodes.
func (c *ClusterStatusCmd) Run(ctx context.Context, app *App) error {
	addr, err := app.ownStore("cluster status")
	if err != nil {
		return err
	}
	m, done, err := lookAt(ctx, app, addr, c.Name)
	if err != nil {
		return err
	}
	defer done()
	look, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	view, err := m.Look(look)
	if err != nil {
		return err
	}
	status, err := statusOf(c.Name, view)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(app.Stdout, status)
	}
	if len(status.Nodes) == 0 {
		app.Notef("no node of cluster %s is there", c.Name)
		return nil
	}
	t := table{numbers: []bool{false, false, false, true, true, true, false}}
	t.add("NODE", "ADDRESS", "ZONE", "RANKS", "SPILL", "SHARE", "STATE")
	for _, n := range status.Nodes {
		t.add(n.ID, n.Address, n.Zone, strconv.FormatInt(n.Weight, 10), humanize.IBytes(uint64(n.Capacity)),
			fmt.Sprintf("%.1f %%", 100*n.Share), n.state())
	}
	return t.print(app.Stdout)
}

// lookAt returns the members of a cluster, of whom the caller is none, and what ends looking at them.
func lookAt(ctx context.Context, app *App, addr, name string) (*members.Members, func(), error) {
	s, err := openStore(ctx, addr, false, app.quietLog())
	if err != nil {
		return nil, nil, err
	}
	m, err := membersOf(s, name, app.quietLog())
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return m, func() { _ = s.Close() }, nil
}

// statusOf says what nodes own where everything fits, and how far those are that leave.
func statusOf(cluster string, view members.View) (clusterStatus, error) {
	status := clusterStatus{Cluster: cluster, Nodes: []nodeStatus{}}
	if len(view.Nodes) > 0 {
		r, err := layout.NewRecord(0, view.Nodes, nil)
		if err != nil {
			return status, err
		}
		l, err := layout.New(r)
		if err != nil {
			return status, err
		}
		status.Layout = l.Name()
		for i := range l.Nodes() {
			status.Nodes = append(status.Nodes, nodeStatus{Node: l.Node(i), Share: float64(l.Owned(i)) / layout.Slots})
		}
	}
	for _, n := range view.Leaving {
		status.Nodes = append(status.Nodes, nodeStatus{Node: n.Node, Draining: &n.Draining})
	}
	return status, nil
}
