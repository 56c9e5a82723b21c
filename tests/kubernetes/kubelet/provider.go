package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// provider is what Virtual Kubelet has pods run by, on one node.
type provider struct {
	runtime *runtime

	mu     sync.Mutex
	pods   map[string]*pod // by namespace/name
	notify func(*corev1.Pod)
}

func key(namespace, name string) string { return namespace + "/" + name }

// CreatePod begins to run a pod.
func (p *provider) CreatePod(_ context.Context, object *corev1.Pod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := newPod(p.runtime, object, func(changed *corev1.Pod) {
		p.mu.Lock()
		notify := p.notify
		p.mu.Unlock()
		notify(changed)
	})
	p.pods[key(object.Namespace, object.Name)] = one
	one.start()
	return nil
}

// UpdatePod does nothing: what may change in a pod does not concern its containers.
func (*provider) UpdatePod(context.Context, *corev1.Pod) error { return nil }

// DeletePod has a pod end, within its grace period. notify reports that it has ended.
func (p *provider) DeletePod(_ context.Context, object *corev1.Pod) error {
	one, err := p.find(object.Namespace, object.Name)
	if err != nil {
		return err
	}
	grace := int64(30)
	if s := object.DeletionGracePeriodSeconds; s != nil {
		grace = *s
	}
	one.end(grace)
	p.runtime.running.Go(func() { p.forget(one, object) })
	return nil
}

// forget takes a pod that has ended off the API server, as a kubelet does. Virtual Kubelet would wait for the whole
// grace period.
func (p *provider) forget(one *pod, object *corev1.Pod) {
	<-one.ended
	p.mu.Lock()
	if p.pods[key(object.Namespace, object.Name)] == one {
		delete(p.pods, key(object.Namespace, object.Name))
	}
	p.mu.Unlock()
	if p.runtime.closing.Load() {
		return
	}
	// Not before its last status is there: of a pod that is followed by one of the same name, Virtual Kubelet would
	// look for a status that the new one does not have yet, and panic.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pods := p.runtime.client.CoreV1().Pods(object.Namespace)
	for sent := false; !sent; {
		now, err := pods.Get(ctx, object.Name, metav1.GetOptions{})
		if err != nil || now.UID != object.UID {
			return
		}
		if s := now.Status.ContainerStatuses; len(s) > 0 && s[0].State.Terminated != nil {
			sent = true
		}
		time.Sleep(100 * time.Millisecond)
	}
	at := metav1.NewDeleteOptions(0)
	at.Preconditions = metav1.NewUIDPreconditions(string(object.UID))
	err := pods.Delete(ctx, object.Name, *at)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		slog.Warn("a pod that has ended stays", "pod", object.Name, "error", err)
	}
}

func (p *provider) find(namespace, name string) (*pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.pods[key(namespace, name)]
	if one == nil {
		return nil, errdefs.NotFoundf("no pod %s/%s", namespace, name)
	}
	return one, nil
}

// GetPod returns a pod with its status.
func (p *provider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	one, err := p.find(namespace, name)
	if err != nil {
		return nil, err
	}
	return one.copy(), nil
}

// GetPodStatus returns the status of a pod.
func (p *provider) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	object, err := p.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &object.Status, nil
}

// GetPods returns all pods.
func (p *provider) GetPods(context.Context) (list []*corev1.Pod, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.pods {
		list = append(list, one.copy())
	}
	return list, nil
}

// NotifyPods sets the function that gets changes of pods.
func (p *provider) NotifyPods(_ context.Context, notify func(*corev1.Pod)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify = notify
}
