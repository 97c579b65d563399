package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	"github.com/flowkeep/flowkeep/internal/refusal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	workv1 "open-cluster-management.io/api/work/v1"
)

// requestLimit is how long the API server may take to answer.
const requestLimit = 30 * time.Second

// client writes. Safe for concurrent use.
type client struct{ dynamic.Interface }

// work makes a write of a work; annotated reports whether it has annotations. It gives the work as it is after an
// update.
func (c client) work(ctx context.Context, w *fleet.Write, annotated bool) (after *unstructured.Unstructured, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	in := c.Resource(works.resource).Namespace(w.Cluster)
	if w.Verb == fleet.Delete {
		return nil, explained(in.Delete(ctx, w.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &w.ResourceVersion}}))
	}
	var live *workv1.ManifestWork
	if w.Live {
		o, err := in.Get(ctx, w.Name, metav1.GetOptions{})
		if err != nil {
			return nil, explained(err)
		}
		live = new(workv1.ManifestWork)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, live); err != nil {
			return nil, fmt.Errorf("read a work: %w", err)
		}
	}
	if w.Verb == fleet.Update {
		patch, err := w.Patch(live, annotated)
		if err != nil {
			return nil, err
		}
		after, err = in.Patch(ctx, w.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
		return after, explained(outdated(err, w))
	}
	work, err := w.Work(live)
	if err != nil {
		return nil, err
	}
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(work)
	if err != nil {
		return nil, fmt.Errorf("write a work down: %w", err)
	}
	delete(o, "status")
	_, err = in.Create(ctx, &unstructured.Unstructured{Object: o}, metav1.CreateOptions{})
	return nil, explained(err)
}

// outdated is what the API server says of a JSON patch whose test failed, as what it is: the work is another than the one that it was made for.
// What is wrong with an object has causes, and what a webhook says begins with its name.
func outdated(err error, w *fleet.Write) error {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Code != http.StatusUnprocessableEntity || status.ErrStatus.Details != nil && len(status.ErrStatus.Details.Causes) > 0 ||
		strings.Contains(status.ErrStatus.Message, "denied the request") {
		return err
	}
	return apierrors.NewConflict(works.resource.GroupResource(), w.Name, err)
}

// putStatus writes an object's status, if it still is the version that was looked at.
func (c client) putStatus(ctx context.Context, resource schema.GroupVersionResource, o fleet.Object, status any) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	u := &unstructured.Unstructured{Object: map[string]any{}}
	for key, value := range o {
		u.Object[key] = value
	}
	u.Object["status"] = status
	raw, err := u.MarshalJSON()
	if err != nil {
		return fmt.Errorf("write a status down: %w", err)
	}
	whole := new(unstructured.Unstructured) // as JSON has it, whatever types the status was made of
	if err := whole.UnmarshalJSON(raw); err != nil {
		return fmt.Errorf("write a status down: %w", err)
	}
	_, err = c.Resource(resource).Namespace(u.GetNamespace()).UpdateStatus(ctx, whole, metav1.UpdateOptions{})
	return explained(err)
}

// annotate writes annotations of an object, and removes those with an empty value, if the object still is the version
// that was looked at.
func (c client) annotate(
	ctx context.Context, resource schema.GroupVersionResource, o fleet.Object, values map[string]string,
) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	u := unstructured.Unstructured{Object: o}
	put := map[string]any{}
	for key, value := range values {
		if put[key] = nil; value != "" {
			put[key] = value
		}
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": u.GetResourceVersion(), "annotations": put}})
	if err != nil {
		return fmt.Errorf("write an annotation down: %w", err)
	}
	_, err = c.Resource(resource).Namespace(u.GetNamespace()).Patch(ctx, u.GetName(), types.MergePatchType, raw, metav1.PatchOptions{})
	return explained(err)
}

// explained says what to do about what the API server refused.
func explained(err error) error {
	return refusal.Explained(err, "bind the ClusterRole flowkeep-policy-sync of deploy/roles.yaml; for kinds of policies of your own, one that may get, list and watch them and update their status")
}
