package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// probe asks the container whether it has started, is alive and is ready. It closes unhealthy if it is not alive.
func (p *pod) probe(ctx context.Context, address string, unhealthy chan<- struct{}) {
	c := p.copy().Spec.Containers[0]
	if !p.until(ctx, c, c.StartupProbe, address) {
		if ctx.Err() == nil {
			close(unhealthy)
		}
		return
	}
	p.update(func(_ *corev1.PodStatus, s *corev1.ContainerStatus) { s.Started = new(true) })
	failures, live := 0, time.Now()
	ready, bad := c.ReadinessProbe == nil, 0
	for ctx.Err() == nil {
		if pr := c.ReadinessProbe; pr != nil {
			good := ask(ctx, c, pr, address)
			if bad++; good {
				bad = 0
			}
			if now := good || ready && bad < int(pr.FailureThreshold); now != ready {
				ready = now
				p.update(func(_ *corev1.PodStatus, s *corev1.ContainerStatus) { s.Ready = ready })
			}
		}
		if pr := c.LivenessProbe; pr != nil && time.Since(live) > time.Duration(pr.PeriodSeconds)*time.Second {
			live = time.Now()
			if failures++; ask(ctx, c, pr, address) {
				failures = 0
			}
			if failures >= int(pr.FailureThreshold) && ctx.Err() == nil {
				close(unhealthy)
				return
			}
		}
		pause := time.Second
		if pr := c.ReadinessProbe; pr != nil {
			pause = time.Duration(pr.PeriodSeconds) * time.Second
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// until asks until the answer is good; false if it never is.
func (p *pod) until(ctx context.Context, c corev1.Container, pr *corev1.Probe, address string) bool {
	if pr == nil {
		return true
	}
	for range pr.FailureThreshold {
		if ask(ctx, c, pr, address) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Duration(pr.PeriodSeconds) * time.Second):
		}
	}
	return false
}

// asking is what probes ask by: no connection is kept, and no certificate checked, as by a kubelet.
var asking = &http.Client{Transport: &http.Transport{
	DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as a kubelet does
}}

func ask(ctx context.Context, c corev1.Container, pr *corev1.Probe, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(pr.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	port := pr.HTTPGet.Port.IntValue()
	for _, known := range c.Ports {
		if known.Name == pr.HTTPGet.Port.StrVal {
			port = int(known.ContainerPort)
		}
	}
	url := fmt.Sprintf("%s://%s:%d%s", strings.ToLower(string(pr.HTTPGet.Scheme)), address, port, pr.HTTPGet.Path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	answer, err := asking.Do(request)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode >= 200 && answer.StatusCode < 400
}
