package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/netctl/apiserver"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// places are directories of nodes, where the installation says that they are elsewhere than usual.
type places struct{ cniConf, cniBin, ovsRun string }

const usualRun = "/run/openvswitch"

// fields returns the places with their flags and their names in the note.
func (p *places) fields() []placeField {
	return []placeField{{"cni-conf-dir", "cni-conf", "/etc/cni/net.d", &p.cniConf}, {"cni-bin-dir", "cni-bin", "/opt/cni/bin", &p.cniBin}, {"ovs-run-dir", "openvswitch", usualRun, &p.ovsRun}}
}

type placeField struct {
	flag, volume, usual string
	value               *string
}

// findImage notes the image, and where things are on nodes, before the DaemonSet goes; a run that goes on finds it there. What flags say counts more.
func (u *uninstall) findImage(ctx context.Context, installed bool) error {
	const notes = ownNamespace + "/configmaps"
	said := map[string]string{}
	if installed {
		set, err := apiserver.One[appsv1.DaemonSet](ctx, u.api, ownApps+"/daemonsets/netplugin")
		if err != nil {
			return err
		}
		said = saidBy(&set.Spec.Template.Spec, &u.dirs)
	} else if m, err := apiserver.One[corev1.ConfigMap](ctx, u.api, notes+"/"+note); err == nil {
		said = m.Data
	} else if !apiserver.IsNotFound(err) {
		return err
	}
	u.image = cmp.Or(u.image, said["image"])
	for _, f := range u.dirs.fields() {
		*f.value = cmp.Or(*f.value, said[f.flag], f.usual)
	}
	if u.image == "" && !u.leaveNodes {
		return errors.New("no DaemonSet netplugin is there that would tell which image cleans the nodes: give --image, or --leave-nodes to leave them as they are")
	}
	if u.image == "" {
		return nil
	}
	data := map[string]string{"image": u.image}
	for _, f := range u.dirs.fields() {
		data[f.flag] = *f.value
	}
	if maps.Equal(said, data) && !installed {
		return nil // noted already
	}
	body, err := json.Marshal(corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: note}, Data: data})
	if err != nil {
		return err
	}
	if err := u.api.Delete(ctx, notes+"/"+note); err != nil && !apiserver.IsNotFound(err) { // of an installation before
		return err
	}
	return u.api.Create(ctx, notes, body)
}

// saidBy returns the image of the DaemonSet netplugin, and its volumes' directories by flag.
func saidBy(pod *corev1.PodSpec, dirs *places) map[string]string {
	said := map[string]string{}
	for _, c := range pod.Containers {
		if c.Name == "netplugin" {
			said["image"] = c.Image
		}
	}
	for _, f := range dirs.fields() {
		for _, v := range pod.Volumes {
			if v.Name == f.volume && v.HostPath != nil {
				said[f.flag] = v.HostPath.Path
			}
		}
	}
	return said
}

// again returns the command that cleans these nodes later.
func (u *uninstall) again(left []string) string {
	words := []string{"netctl uninstall --nodes", strings.Join(left, ","), "--image", cmp.Or(u.image, "IMAGE")}
	if u.state {
		words = append(words, "--state")
	}
	for _, f := range u.dirs.fields() {
		if *f.value != "" && *f.value != f.usual {
			words = append(words, "--"+f.flag, *f.value)
		}
	}
	return strings.Join(words, " ")
}

// later cleans nodes that were left when the rest was removed, in a namespace that is there for as long as it takes.
func (u *uninstall) later(ctx context.Context) error {
	if is, err := u.there(ctx, ownApps+"/daemonsets/netplugin"); err != nil {
		return err
	} else if is {
		return errors.New("Flowkeep is installed, and would be again what it was on these nodes: leave --nodes out to uninstall it")
	}
	for _, name := range u.only {
		if is, err := u.there(ctx, "/api/v1/nodes/"+url.PathEscape(name)); err != nil {
			return err
		} else if !is {
			return fmt.Errorf("there is no node %s", name)
		}
	}
	noted, err := u.there(ctx, ownNamespace+"/configmaps/"+note)
	if err != nil {
		return err
	}
	if u.image == "" && !noted {
		return errors.New("give --image: the image with netplugin that cleans the nodes, as the uninstall that left them said")
	}
	if !u.agreed() {
		return errors.New("not uninstalled")
	}
	return interruptible(ctx, u.cleanLater)
}

func (u *uninstall) cleanLater(ctx context.Context) error {
	labels := map[string]string{"app.kubernetes.io/part-of": "flowkeep", "pod-security.kubernetes.io/enforce": "privileged"}
	body, err := json.Marshal(corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "flowkeep-system", Labels: labels}})
	if err != nil {
		return err
	}
	if err := u.api.Create(ctx, "/api/v1/namespaces", body); err != nil && !apiserver.IsConflict(err) { // of a run before
		return err
	}
	if err := u.account(ctx); err != nil {
		return err
	}
	if err := errors.Join(u.findImage(ctx, false), u.forget(ctx)); err != nil {
		return err
	}
	if _, err := u.nodes(ctx, func(context.Context) ([]string, error) { return u.only, nil }); err != nil {
		return err
	}
	if err := u.remove(ctx, []string{ownNamespace}); err != nil {
		return err
	}
	return u.gone(ctx, []string{ownNamespace}, nil)
}

// account waits for the namespace's ServiceAccount, without which no pod can be made.
func (u *uninstall) account(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, u.wait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if is, err := u.there(ctx, ownNamespace+"/serviceaccounts/default"); err != nil || is {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.New("the namespace flowkeep-system gets no ServiceAccount default: does kube-controller-manager run?")
		}
	}
}

// forget removes the pods that cleaned nodes before Flowkeep was installed again.
func (u *uninstall) forget(ctx context.Context) error {
	pods, _, err := u.pods(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if err := u.api.DeleteNow(ctx, ownNamespace+"/pods/"+url.PathEscape(p.Name)); err != nil && !apiserver.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// notClean is that nodes are not, whatever the API server says: these may be left.
type notClean struct{ error }

func (u *uninstall) allNodes(ctx context.Context) (names []string, err error) {
	err = apiserver.Each(ctx, u.api, "/api/v1/nodes", "kubernetes.io/os=linux", func(n *metav1.PartialObjectMetadata, _ int) { names = append(names, n.Name) })
	return names, err
}

// nodes cleans the nodes that which returns, and returns those that are not clean.
func (u *uninstall) nodes(ctx context.Context, which func(context.Context) ([]string, error)) (left []string, _ error) {
	names, err := which(ctx)
	if err != nil {
		return nil, err
	}
	if u.image == "" {
		return names, notClean{errors.New("no image to clean nodes with, which are left as they are")}
	}
	ctx, cancel := context.WithTimeout(ctx, u.wait)
	defer cancel()
	var pods map[string]*corev1.Pod // that clean, by node
	begun := map[string]bool{}      // by this run
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		seen, busy, err := u.pods(ctx)
		if err == nil {
			pods = seen
			err = u.cleaners(ctx, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return busy[n] || begun[n] }), pods, begun)
		}
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		left, why, more := unclean(names, pods, begun)
		if len(left) == 0 {
			fmt.Fprintf(u.out, "%s clean\n", plural(len(names), "node is", "nodes are"))
			return nil, nil
		}
		if !more {
			return left, notClean{fmt.Errorf("not clean: %s", strings.Join(why, "; "))}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return left, notClean{fmt.Errorf("not clean within %v: %s", u.wait, strings.Join(why, "; "))}
		}
	}
}

// pods returns the cleaning pods by node, and the nodes where netplugin still runs.
func (u *uninstall) pods(ctx context.Context) (cleaners map[string]*corev1.Pod, busy map[string]bool, err error) {
	cleaners, busy = map[string]*corev1.Pod{}, map[string]bool{}
	err = apiserver.Each(ctx, u.api, ownNamespace+"/pods", ofFlowkeep, func(p *corev1.Pod, _ int) {
		switch {
		case p.Labels[cleanerLabel] != "" && p.DeletionTimestamp == nil:
			cleaners[p.Spec.NodeName] = p
		case p.Labels["app.kubernetes.io/name"] == "netplugin" && p.Status.Phase == corev1.PodRunning:
			busy[p.Spec.NodeName] = true
		}
	})
	return cleaners, busy, err
}

// unclean returns the names and reasons of nodes that are not clean; more reports whether waiting may help.
func unclean(names []string, pods map[string]*corev1.Pod, begun map[string]bool) (left, whys []string, more bool) {
	for _, n := range slices.Sorted(slices.Values(names)) {
		p := pods[n]
		if p != nil && p.Status.Phase == corev1.PodSucceeded {
			continue
		}
		why := "netplugin has not ended"
		if p != nil {
			why = reason(p)
		} else if begun[n] {
			why = "just begun"
		}
		more = more || p == nil || p.Status.Phase != corev1.PodFailed
		left, whys = append(left, n), append(whys, fmt.Sprintf("%s (%s)", n, oneLine.Replace(why)))
	}
	return left, whys, more
}

// reason returns why a pod has not succeeded.
func reason(p *corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.Message != "" {
			return strings.TrimSpace(t.Message)
		}
		if t := s.LastTerminationState.Terminated; t != nil && t.Message != "" { // it is tried again
			return strings.TrimSpace(t.Message)
		}
		if w := s.State.Waiting; w != nil {
			return strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	return string(p.Status.Phase)
}

// cleaners makes a pod on each of the nodes that has none, or one that has failed before.
func (u *uninstall) cleaners(ctx context.Context, names []string, pods map[string]*corev1.Pod, begun map[string]bool) error {
	for _, n := range names {
		if p := pods[n]; p != nil && p.Status.Phase != corev1.PodFailed {
			continue
		} else if p != nil {
			if err := u.api.Delete(ctx, ownNamespace+"/pods/"+url.PathEscape(p.Name)); err != nil && !apiserver.IsNotFound(err) {
				return err
			}
			delete(pods, n)
		}
		body, err := json.Marshal(u.cleaner(n))
		if err != nil {
			return err
		}
		switch err := u.api.Create(ctx, ownNamespace+"/pods", body); {
		case apiserver.IsConflict(err): // the one before is not gone yet
		case err != nil:
			return fmt.Errorf("start the pod that cleans %s: %w", n, err)
		default:
			begun[n] = true
		}
	}
	return nil
}

// cleaner runs in the node's network, whatever taints the node has, and says in its status why it failed. On nodes that were left it refuses, and is
// tried again, while netplugin has not ended yet, and where pods are wired unless that is forced.
func (u *uninstall) cleaner(node string) *corev1.Pod {
	args := []string{"netplugin", "clean", "--cni-conf-dir=" + u.dirs.cniConf, "--cni-bin-dir=" + u.dirs.cniBin, "--ovsdb=unix:" + u.dirs.ovsRun + "/db.sock", "--ovs-run-dir=" + u.dirs.ovsRun}
	restart := corev1.RestartPolicyOnFailure
	if len(u.only) == 0 {
		restart = corev1.RestartPolicyNever
	}
	if len(u.only) == 0 || u.force {
		args = append(args, "--force")
	}
	if u.state {
		args = append(args, "--state")
	}
	yes, root := true, int64(0)
	var mounts []corev1.VolumeMount
	var volumes []corev1.Volume
	// The parents of what goes, as a directory that is mounted cannot be removed.
	for i, dir := range []string{"/run", "/var/lib", u.dirs.cniConf, u.dirs.cniBin, u.dirs.ovsRun} {
		if slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(dir+"/", m.MountPath+"/") }) {
			continue
		}
		name := fmt.Sprint("host", i)
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: dir})
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
	}
	sum := sha256.Sum256([]byte(node))
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("clean-%x", sum[:8]), Labels: map[string]string{cleanerLabel: "true", "app.kubernetes.io/part-of": "flowkeep"}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, RestartPolicy: restart, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, AutomountServiceAccountToken: new(bool), Volumes: volumes,
			Containers: []corev1.Container{{Name: "clean", Image: u.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: args, VolumeMounts: mounts, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{Privileged: &yes, RunAsUser: &root}}}}}
}
