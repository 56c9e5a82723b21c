package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

// proxy forwards connections to services to endpoints that are ready, as kube-proxy does, and names services as the
// cluster's DNS does. A connection stays where it is.
type proxy struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	ready    []func() bool

	serving sync.WaitGroup
}

func newProxy(shared informers.SharedInformerFactory) *proxy {
	services, slices := shared.Core().V1().Services(), shared.Discovery().V1().EndpointSlices()
	return &proxy{
		services: services.Lister(), slices: slices.Lister(),
		ready: []func() bool{services.Informer().HasSynced, slices.Informer().HasSynced},
	}
}

// listed are the services that have an address of their own.
func (p *proxy) listed() (list []*corev1.Service) {
	all, err := p.services.List(labels.Everything())
	if err != nil {
		return nil
	}
	for _, s := range all {
		if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone &&
			s.Namespace != corev1.NamespaceDefault {
			list = append(list, s)
		}
	}
	return list
}

// hosts are the lines of /etc/hosts.
func (p *proxy) hosts() string {
	var lines strings.Builder
	for _, s := range p.listed() {
		name := s.Name + "." + s.Namespace
		fmt.Fprintf(&lines, "%s %s %s.svc %s.svc.cluster.local\n", s.Spec.ClusterIP, name, name, name)
	}
	return lines.String()
}

// run listens for each port of each service until ctx ends.
func (p *proxy) run(ctx context.Context) error {
	defer p.serving.Wait()
	listening := map[string]bool{}
	for ctx.Err() == nil {
		for _, s := range p.listed() {
			for _, port := range s.Spec.Ports {
				at := fmt.Sprintf("%s:%d", s.Spec.ClusterIP, port.Port)
				if listening[at] {
					continue
				}
				// it may be there
				_ = exec.CommandContext(ctx, "ip", "addr", "add", s.Spec.ClusterIP+"/32", "dev", "lo").Run()
				l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
				if err != nil {
					slog.Warn("a service cannot be listened for", "address", at, "error", err)
					continue
				}
				listening[at] = true
				p.serving.Go(func() { p.serve(ctx, l, s.Namespace, s.Name, port.Name) })
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

func (p *proxy) serve(ctx context.Context, l net.Listener, namespace, service, port string) {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		p.serving.Go(func() {
			defer func() { _ = client.Close() }()
			if err := p.forward(ctx, client, namespace, service, port); err != nil {
				slog.Debug("a connection has ended", "service", service, "error", err)
			}
		})
	}
}

func (p *proxy) forward(ctx context.Context, client net.Conn, namespace, service, port string) error {
	list, err := p.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: service}))
	if err != nil {
		return err
	}
	var at []string
	for _, s := range list {
		for _, e := range s.Endpoints {
			for _, known := range s.Ports {
				if e.Conditions.Ready != nil && *e.Conditions.Ready && known.Name != nil && *known.Name == port &&
					known.Port != nil {
					at = append(at, fmt.Sprintf("%s:%d", e.Addresses[0], *known.Port))
				}
			}
		}
	}
	if len(at) == 0 {
		return errors.New("no endpoint is ready")
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", at[rand.N(len(at))])
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })
	defer stop()
	var copying sync.WaitGroup
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		copying.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = pair[0].(*net.TCPConn).CloseWrite()
		})
	}
	copying.Wait()
	return server.Close()
}
