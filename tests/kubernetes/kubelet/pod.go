package main

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pod is a pod of one container. One goroutine runs it, from start until ended is closed.
type pod struct {
	runtime *runtime
	notify  func(*corev1.Pod)
	ending  chan int64    // the grace period in seconds, once
	ended   chan struct{} // closed when nothing of it runs

	mu     sync.Mutex
	object *corev1.Pod
	asked  bool // to end
}

func newPod(r *runtime, object *corev1.Pod, notify func(*corev1.Pod)) *pod {
	return &pod{runtime: r, notify: notify, object: object.DeepCopy(), ending: make(chan int64, 1),
		ended: make(chan struct{})}
}

func (p *pod) copy() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.object.DeepCopy()
}

// end has the pod end; more than once is once.
func (p *pod) end(grace int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked {
		p.asked = true
		p.ending <- grace
	}
}

func (p *pod) start() { p.runtime.running.Go(p.run) }

// update changes the status and reports it.
func (p *pod) update(change func(s *corev1.PodStatus, c *corev1.ContainerStatus)) {
	p.mu.Lock()
	s := &p.object.Status
	if len(s.ContainerStatuses) == 0 {
		c := p.object.Spec.Containers[0]
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: c.Name, Image: c.Image}}
		s.StartTime = &metav1.Time{Time: time.Now()}
	}
	change(s, &s.ContainerStatuses[0])
	ready := corev1.ConditionFalse
	if s.ContainerStatuses[0].Ready {
		ready = corev1.ConditionTrue
	}
	var kept []corev1.PodCondition
	at := metav1.Now()
	for _, c := range s.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == ready:
			at = c.LastTransitionTime
		case c.Type != corev1.PodReady && c.Type != corev1.ContainersReady:
			kept = append(kept, c)
		}
	}
	s.Conditions = append(kept,
		corev1.PodCondition{Type: corev1.PodReady, Status: ready, LastTransitionTime: at},
		corev1.PodCondition{Type: corev1.ContainersReady, Status: ready, LastTransitionTime: at})
	changed := p.object.DeepCopy()
	p.mu.Unlock()
	p.notify(changed)
}

// run runs the container, again and again where the pod says so.
func (p *pod) run() {
	defer close(p.ended)
	log := slog.With("pod", p.object.Namespace+"/"+p.object.Name)
	p.update(func(s *corev1.PodStatus, c *corev1.ContainerStatus) {
		s.Phase = corev1.PodPending
		c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	})
	for attempt := 0; ; attempt++ {
		code, stopped, err := p.once(log)
		log.Info("the container has ended", "code", code, "error", err, "stopped", stopped)
		policy := p.object.Spec.RestartPolicy
		again := policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && code != 0
		if stopped || !again || p.runtime.closing.Load() {
			p.update(func(s *corev1.PodStatus, c *corev1.ContainerStatus) {
				s.Phase = corev1.PodSucceeded
				if code != 0 {
					s.Phase = corev1.PodFailed
				}
				c.Ready, c.Started = false, new(false)
				c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					ExitCode: int32(code), FinishedAt: metav1.Now(), Reason: "Completed", Message: fmt.Sprint(err),
				}}
			})
			return
		}
		p.update(func(_ *corev1.PodStatus, c *corev1.ContainerStatus) {
			c.Ready = false
			c.RestartCount++
			c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
				Message: fmt.Sprint(err)}}
		})
		select {
		case grace := <-p.ending:
			p.ending <- grace // the next attempt is reported at once
		case <-time.After(min(time.Duration(attempt+1), 10) * time.Second):
		}
	}
}

// once runs the container to its end. stopped says that it was asked to.
func (p *pod) once(log *slog.Logger) (code int, stopped bool, err error) {
	object := p.copy()
	c, err := p.runtime.prepare(object)
	if err != nil {
		select {
		case <-p.ending:
			return 1, true, err
		default:
			return 1, false, err
		}
	}
	defer c.remove()
	if err := c.command.Start(); err != nil {
		return 1, false, err
	}
	exited := make(chan error, 1)
	go func() { exited <- c.command.Wait() }()
	ctx, cancel := context.WithCancel(context.Background())
	var probing sync.WaitGroup
	defer probing.Wait()
	defer cancel()
	p.update(func(s *corev1.PodStatus, st *corev1.ContainerStatus) {
		s.Phase, s.PodIP, s.HostIP = corev1.PodRunning, c.address, "10.213.0.1"
		s.PodIPs = []corev1.PodIP{{IP: c.address}}
		st.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		st.Ready = object.Spec.Containers[0].ReadinessProbe == nil
	})
	unhealthy := make(chan struct{})
	probing.Go(func() { p.probe(ctx, c.address, unhealthy) })
	select {
	case err = <-exited:
		return exitCode(err), false, err
	case <-unhealthy:
		log.Warn("the container does not answer its liveness probe")
		c.signal(syscall.SIGKILL)
		err = <-exited
		return exitCode(err), false, err
	case grace := <-p.ending:
		deadline := time.After(time.Duration(grace) * time.Second)
		if l := object.Spec.Containers[0].Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
			select {
			case err = <-exited:
				return exitCode(err), true, err
			case <-time.After(time.Duration(l.PreStop.Sleep.Seconds) * time.Second):
			}
		}
		c.signal(syscall.SIGTERM)
		select {
		case err = <-exited:
		case <-deadline:
			log.Warn("the grace period is over", "seconds", grace)
			c.signal(syscall.SIGKILL)
			err = <-exited
		}
		return exitCode(err), true, err
	}
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if failed, ok := err.(*exec.ExitError); ok && failed.ExitCode() >= 0 { //nolint:errorlint // of Wait itself
		return failed.ExitCode()
	}
	return 137
}
