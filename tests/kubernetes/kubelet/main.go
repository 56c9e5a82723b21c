// Command kubelet runs the pods of some nodes as containers of runc on this machine, and does the work of kube-proxy and
// the cluster's DNS. It is for the tests, which have a real control plane and no machines.
// It does the part of a kubelet's work that the chart relies on: volumes (configMap, secret, emptyDir, claims of local
// volumes), environment, security contexts (user, groups, read-only root, no capabilities), HTTP probes, preStop by
// sleep, grace periods, restarts. It runs in a network namespace of its own, where the bridge br0 is (kubernetes.sh
// makes it).
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "`FILE` that says where the API server is")
	nodes := flag.Int("nodes", 2, "`NUMBER` of nodes")
	image := flag.String("image", "", "`DIR` with rootfs and config.json of the one image that there is")
	dir := flag.String("dir", "", "`DIR` for volumes, bundles and logs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *kubeconfig, *image, *dir, *nodes); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
		os.Exit(1)
	}
}

// run serves the nodes until ctx ends, and ends their pods then.
func run(ctx context.Context, kubeconfig, imageDir, dir string, nodes int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	image, err := loadImage(imageDir)
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(client, time.Minute)
	proxy := newProxy(shared)
	runtime := &runtime{dir: dir, image: image, client: client, hosts: proxy.hosts}
	var running sync.WaitGroup
	failed := make(chan error, nodes+1)
	ctx, cancel := context.WithCancel(ctx)
	for i := range nodes {
		n := &node{name: fmt.Sprintf("node-%d", i), client: client, shared: shared, runtime: runtime}
		if err := n.prepare(); err != nil {
			cancel()
			return err
		}
		running.Go(func() { failed <- n.run(ctx) })
	}
	shared.Start(ctx.Done())
	running.Go(func() { failed <- proxy.run(ctx) })
	select {
	case <-ctx.Done():
	case err = <-failed:
		slog.Error("a node has ended", "error", err)
	}
	cancel()
	running.Wait()
	runtime.endAll()
	shared.Shutdown()
	return err
}
