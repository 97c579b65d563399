package watch

import (
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Reporter writes Kubernetes Events; equal ones are counted, not repeated. It never waits for the API server: while that is
// away, or when there are too many of one object, events are dropped.
type Reporter struct {
	recorder    record.EventRecorder
	broadcaster record.EventBroadcaster
}

// NewReporter makes a reporter that writes in the background.
func NewReporter(client kubernetes.Interface) *Reporter {
	b := record.NewBroadcaster()
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Reporter{b.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: wellknown.NetmasterEvents}), b}
}

// Close ends the background.
func (r *Reporter) Close() { r.broadcaster.Shutdown() }

// longestMessage is what the API server takes, in bytes.
const longestMessage = 1024

// Tell writes the Event of this reason about an object of its kind.
func (r *Reporter) Tell(reason wellknown.EventReason, namespace, name, uid, message string) {
	event := wellknown.EventOf(reason)
	if event == nil {
		return // no test lets that be
	}
	if len(message) > longestMessage {
		message = strings.ToValidUTF8(message[:longestMessage-3], "") + "…"
	}
	about := &corev1.ObjectReference{APIVersion: event.APIVersion, Kind: event.Kind, Namespace: namespace, Name: name, UID: types.UID(uid)}
	r.recorder.Event(about, event.Type(), string(reason), message)
}
