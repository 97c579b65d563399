package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Registration keeps netmaster's APIService while the API server reaches netmaster, and deletes it otherwise: an
// unavailable APIService makes discovery incomplete, so that no namespace can be deleted (docs/decisions/007). Call
// Run for one term at a time.
type Registration struct {
	Client kubernetes.Interface
	// Bundle returns the CA bundle of netmaster's certificate.
	Bundle func(context.Context) ([]byte, error)
	Logger *slog.Logger
	// InService is called with each change; may be nil.
	InService func(bool)
	// Patience is how long the registration may be unavailable; 0: 30 s. Look is the time between checks; 0: 5 s.
	Patience, Look time.Duration
	Port           uint16 // of the Service; 0: 443

	state   registrationState
	term    *uint64
	kept    registrationMeta // as last read
	problem string           // last logged
}

const (
	registrationPatience = 30 * time.Second
	registrationLook     = 5 * time.Second
	registrationTimeout  = 5 * time.Second // of a request
	// minRegistrationPause and maxRegistrationPause limit the time between attempts to return to service.
	minRegistrationPause = time.Minute
	maxRegistrationPause = 10 * time.Minute
	registrationManager  = "flowkeep-netmaster-registration"
	// registrationMemory is the ConfigMap with the metadata of the registration that netmaster deleted last.
	registrationMemory = "netmaster-registration"
	// registrationOwner is the ClusterRole that owns a registration created by netmaster, for garbage collection:
	// netmaster may lose its right to delete it first.
	registrationOwner = "flowkeep-netmaster"
	registrationName  = inspect.APIVersion + "." + inspect.Group
	registrationPath  = "/apis/apiregistration.k8s.io/v1/apiservices/" + registrationName
)

// registrationStep is the next action on the registration.
type registrationStep int

const (
	registrationKeep registrationStep = iota
	registrationPut
	registrationRemove
)

// registrationSeen is the observed registration. A foreign one points to another Service.
type registrationSeen struct{ there, foreign, available bool }

// registrationState decides when to delete and when to recreate the registration.
type registrationState struct {
	started bool      // the first check of the term is done
	since   time.Time // start of unavailability; zero: available or absent
	until   time.Time // end of the pause out of service; zero: not deleted by netmaster
	tries   int       // consecutive failed attempts
}

// next returns the next action. A missing registration is created at the start of a term, and after the pause if
// netmaster deleted it, but not if another client did.
func (s *registrationState) next(now time.Time, seen registrationSeen, patience time.Duration) registrationStep {
	begins := !s.started
	s.started = true
	switch {
	case !seen.there && (begins || !s.until.IsZero() && !now.Before(s.until)):
		s.since, s.until = time.Time{}, time.Time{}
		return registrationPut
	case !seen.there:
		return registrationKeep
	case seen.foreign || seen.available:
		*s = registrationState{started: true}
		return registrationKeep
	}
	s.until = time.Time{}
	if s.since.IsZero() {
		s.since = now
	}
	if now.Sub(s.since) < patience {
		return registrationKeep
	}
	s.since = time.Time{}
	s.until = now.Add(min(minRegistrationPause<<min(s.tries, 10), maxRegistrationPause))
	s.tries++
	return registrationRemove
}

// registrationMeta is the metadata that the registration's author set, and which fields are whose.
type registrationMeta struct {
	Labels        map[string]string           `json:"labels,omitempty"`
	Annotations   map[string]string           `json:"annotations,omitempty"`
	ManagedFields []metav1.ManagedFieldsEntry `json:"managedFields,omitempty"`
}

type registrationObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		registrationMeta
		Name            string                  `json:"name"`
		UID             types.UID               `json:"uid,omitempty"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Group                string               `json:"group"`
		Version              string               `json:"version"`
		GroupPriorityMinimum int                  `json:"groupPriorityMinimum"`
		VersionPriority      int                  `json:"versionPriority"`
		CABundle             []byte               `json:"caBundle,omitempty"`
		Service              *registrationService `json:"service,omitempty"`
	} `json:"spec"`
	Status *struct {
		Conditions []struct{ Type, Status string } `json:"conditions"`
	} `json:"status,omitempty"`
}

type registrationService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      uint16 `json:"port"`
}

func (o *registrationObject) seen() registrationSeen {
	s := registrationSeen{there: true}
	svc := o.Spec.Service
	s.foreign = svc == nil || svc.Name != inspect.Service || svc.Namespace != inspect.ServiceNamespace
	if o.Status != nil {
		for _, c := range o.Status.Conditions {
			s.available = s.available || c.Type == "Available" && c.Status == "True"
		}
	}
	return s
}

// Run maintains the registration until ctx ends. If netmaster stops then, it deletes the registration; a netmaster
// that takes over recreates it.
func (r *Registration) Run(ctx context.Context, term uint64, stops func() bool) {
	if r.term == nil || *r.term != term {
		r.term, r.state = &term, registrationState{}
	}
	for {
		r.report(r.once(ctx, time.Now()))
		select {
		case <-time.After(cmp.Or(r.Look, registrationLook)):
			continue
		case <-ctx.Done():
		}
		break
	}
	if stops() {
		r.report(r.leave(context.WithoutCancel(ctx)))
	}
}

func (r *Registration) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != r.problem {
		r.Logger.Warn("could not maintain netmaster's APIService", "error", err)
	}
	r.problem = text
}

func (r *Registration) once(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, registrationTimeout)
	defer cancel()
	have, err := r.get(ctx)
	if err != nil {
		return err
	}
	seen := registrationSeen{}
	if have != nil {
		seen = have.seen()
	}
	switch r.state.next(now, seen, cmp.Or(r.Patience, registrationPatience)) {
	case registrationPut:
		err = r.put(ctx)
		seen.there = err == nil
	case registrationRemove:
		r.Logger.Error("the API server does not reach netmaster: the registration is taken out of service, so that "+
			"namespaces can be deleted; netctl needs --server meanwhile", "again", time.Until(r.state.until))
		err = r.remove(ctx, have)
		seen.there = err != nil
	case registrationKeep:
	}
	if r.InService != nil {
		r.InService(seen.there)
	}
	return err
}

// leave deletes the registration before netmaster stops.
func (r *Registration) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registrationTimeout)
	defer cancel()
	have, err := r.get(ctx)
	if err != nil || have == nil || have.seen().foreign {
		return err
	}
	r.Logger.Info("the registration is taken out of service: netmaster stops")
	return r.remove(ctx, have)
}

// get returns the registration; nil if there is none.
func (r *Registration) get(ctx context.Context) (*registrationObject, error) {
	raw, err := r.Client.Discovery().RESTClient().Get().AbsPath(registrationPath).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	o := new(registrationObject)
	if err == nil {
		err = json.Unmarshal(raw, o)
	}
	if err != nil {
		return nil, fmt.Errorf("read the APIService: %w", err)
	}
	r.kept = o.Metadata.registrationMeta
	return o, nil
}

// remove deletes the registration. The next netmaster that creates it finds its metadata in a ConfigMap.
func (r *Registration) remove(ctx context.Context, o *registrationObject) error {
	if err := r.remember(ctx); err != nil {
		r.Logger.Warn("the APIService will lack its labels and annotations if another netmaster recreates it", "error", err)
	}
	body, err := json.Marshal(metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.Metadata.UID}})
	if err != nil {
		return err
	}
	err = r.Client.Discovery().RESTClient().Delete().AbsPath(registrationPath).Body(body).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the APIService: %w", err)
	}
	return nil
}

func (r *Registration) remember(ctx context.Context) error {
	text, err := json.Marshal(r.kept)
	if err != nil {
		return err
	}
	memory := applycore.ConfigMap(registrationMemory, inspect.ServiceNamespace).
		WithData(map[string]string{"metadata": string(text)})
	_, err = r.Client.CoreV1().ConfigMaps(inspect.ServiceNamespace).Apply(ctx, memory,
		metav1.ApplyOptions{FieldManager: registrationManager, Force: true})
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", registrationMemory, err)
	}
	return nil
}

// recall returns the metadata of the registration that any netmaster deleted last; else what this one has read.
func (r *Registration) recall(ctx context.Context) registrationMeta {
	memory, err := r.Client.CoreV1().ConfigMaps(inspect.ServiceNamespace).Get(ctx, registrationMemory, metav1.GetOptions{})
	var kept registrationMeta
	if err != nil || json.Unmarshal([]byte(memory.Data["metadata"]), &kept) != nil {
		return r.kept
	}
	return kept
}

func (r *Registration) put(ctx context.Context) error {
	bundle, err := r.Bundle(ctx)
	if err != nil {
		return err
	}
	kept := r.recall(ctx)
	o := registrationObject{APIVersion: "apiregistration.k8s.io/v1", Kind: "APIService"}
	o.Metadata.Name, o.Metadata.registrationMeta = registrationName, kept
	o.Metadata.ManagedFields = nil
	if o.Metadata.Labels == nil {
		o.Metadata.Labels = map[string]string{
			"app.kubernetes.io/part-of": "flowkeep",
			"app.kubernetes.io/name":    "netmaster",
		}
	}
	role, err := r.Client.RbacV1().ClusterRoles().Get(ctx, registrationOwner, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("create the APIService: read the ClusterRole with which it is to end: %w", err)
	}
	o.Metadata.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "rbac.authorization.k8s.io/v1",
		Kind:       "ClusterRole",
		Name:       role.Name,
		UID:        role.UID,
	}}
	o.Spec.Group, o.Spec.Version = inspect.Group, inspect.APIVersion
	o.Spec.GroupPriorityMinimum, o.Spec.VersionPriority = 100, 100
	o.Spec.CABundle = bundle
	o.Spec.Service = &registrationService{inspect.ServiceNamespace, inspect.Service, cmp.Or(r.Port, 443)}
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	err = r.Client.Discovery().RESTClient().Patch(types.ApplyPatchType).AbsPath(registrationPath).
		Param("fieldManager", registrationManager).Param("force", "true").Body(body).Do(ctx).Error()
	if err == nil {
		err = r.release(ctx, kept.ManagedFields, role.UID)
	}
	if err != nil {
		return fmt.Errorf("create the APIService: %w", err)
	}
	r.Logger.Info("the APIService is in service: netctl can use a kubeconfig")
	return nil
}

// release gives the fields of a registration that netmaster has recreated back to their managers, so that these can
// change them by server-side apply without a conflict. netmaster keeps the CA bundle and the owner.
func (r *Registration) release(ctx context.Context, managers []metav1.ManagedFieldsEntry, role types.UID) error {
	managers = slices.DeleteFunc(slices.Clone(managers), func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == registrationManager || m.Subresource != ""
	})
	if len(managers) == 0 {
		return nil // netmaster is its author
	}
	type fields map[string]any
	own, err := json.Marshal(fields{
		"f:metadata": fields{"f:ownerReferences": fields{fmt.Sprintf(`k:{"uid":%q}`, role): fields{}}},
		"f:spec":     fields{"f:caBundle": fields{}},
	})
	if err != nil {
		return err
	}
	now := metav1.Now()
	managers = append(managers, metav1.ManagedFieldsEntry{
		Manager:    registrationManager,
		Operation:  metav1.ManagedFieldsOperationApply,
		APIVersion: "apiregistration.k8s.io/v1",
		Time:       &now,
		FieldsType: "FieldsV1",
		FieldsV1:   metav1.NewFieldsV1(string(own)),
	})
	body, err := json.Marshal(fields{"metadata": registrationMeta{ManagedFields: managers}})
	if err != nil {
		return err
	}
	return r.Client.Discovery().RESTClient().Patch(types.MergePatchType).AbsPath(registrationPath).
		Param("fieldManager", registrationManager).Body(body).Do(ctx).Error()
}
