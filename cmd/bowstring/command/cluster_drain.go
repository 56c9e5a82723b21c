package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"bowstring/cmd/bowstring/cluster"
)

// drainLook is how often the command looks how far a node is.
const drainLook = time.Second

// ClusterDrainCmd is bowstring cluster drain.
type ClusterDrainCmd struct {
	Name string `arg:"" help:"The cluster, as serve --cluster names it."`
	Node string `arg:"" help:"The node, as serve --node names it."`
	Wait bool   `help:"Wait until the node has ended, and say how far it is."`
}

// Help is shown below the summary.
func (*ClusterDrainCmd) Help() string {
	return `The node reads what it is told from the store, within some seconds. Then it owns nothing any more, its streams end at a batch with a
ticket and the addresses to go on at, and the new owners of what it has cached take over what running jobs will use, soonest first. When nobody wants
more, or --handover-timeout of the server is over, it ends. SIGTERM to the server does the same within --drain-timeout.`
}

// Run tells the node to drain.
func (c *ClusterDrainCmd) Run(ctx context.Context, app *App) error {
	addr, err := app.ownStore("cluster drain")
	if err != nil {
		return err
	}
	m, done, err := lookAt(ctx, app, addr, c.Name)
	if err != nil {
		return err
	}
	defer done()
	if err := m.Order(ctx, c.Node, true); err != nil {
		return err
	}
	if !c.Wait {
		app.Notef("node %s is told to drain", c.Node)
		return nil
	}
	process, said := m.Process(c.Node), ""
	for {
		view, err := m.Look(ctx)
		if err != nil {
			return err
		}
		if m.Process(c.Node) != process {
			app.Notef("node %s has ended", c.Node)
			return nil
		}
		for _, n := range view.Leaving {
			status := nodeStatus{Node: n.Node, Draining: &n.Draining}
			if line := fmt.Sprintf("node %s: %s", c.Node, status.state()); n.ID == c.Node && line != said {
				said = line
				app.Notef("%s", line)
			}
		}
		timer := time.NewTimer(drainLook)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// ClusterUndrainCmd is bowstring cluster undrain.
type ClusterUndrainCmd struct {
	Name string `arg:"" help:"The cluster, as serve --cluster names it."`
	Node string `arg:"" help:"The node, as serve --node names it."`
}

// Run takes the order back.
func (c *ClusterUndrainCmd) Run(ctx context.Context, app *App) error {
	addr, err := app.ownStore("cluster undrain")
	if err != nil {
		return err
	}
	m, done, err := lookAt(ctx, app, addr, c.Name)
	if err != nil {
		return err
	}
	defer done()
	if err := m.Order(ctx, c.Node, false); err != nil {
		return err
	}
	app.Notef("node %s is told to stay, if it has not ended", c.Node)
	return nil
}

// leave is how this server leaves its cluster.
func (c *ServeCmd) leave(app *App, n *node, id string) cluster.Drain {
	d := cluster.Drain{Node: id, Members: n.members, Server: n.server, Logger: app.Log}
	if n.cluster != nil {
		d.Handed = n.egress.Handed
		d.Held = func() int64 { return n.spill.Stats().Bytes }
		d.Jobs = func() bool { return len(n.engine.Wants()) > 0 }
	}
	return d
}

// obey has the server leave its cluster while it is ordered to, until ctx ends; it returns true when it has left.
func (c *ServeCmd) obey(ctx context.Context, app *App, n *node, id string) bool {
	tick := time.NewTicker(orderLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		if !n.members.Ordered() {
			continue
		}
		draining, end := context.WithCancelCause(ctx)
		bounded, cancel := context.WithTimeoutCause(draining, c.HandoverTimeout, errHandover)
		left := make(chan error, 1)
		go func() { left <- c.leave(app, n, id).Run(bounded) }()
		var err error
		for waiting := true; waiting; {
			select {
			case err = <-left:
				waiting = false
			case <-tick.C:
				if !n.members.Ordered() {
					end(cluster.ErrStays)
				}
			}
		}
		cancel()
		end(nil)
		if err == nil || errors.Is(err, errHandover) {
			return true
		}
	}
}

// orderLook is how often a server looks whether it is ordered to drain. That asks nobody.
const orderLook = 200 * time.Millisecond

// errHandover ends a handover that takes too long.
var errHandover = errors.New("the handover timeout is over")

// handoverShare is the part of the drain timeout after a signal in which a node of a cluster hands over. What is left
// is for what does not end before.
const handoverShare = 0.9
