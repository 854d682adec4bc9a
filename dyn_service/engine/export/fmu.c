/* A robot as an FMI 2.0 or 3.0 co-simulation unit. model.h has its sizes, names, start values and functions.
 *
 * All variables are numbers in one array, and a value reference is an index of it. Only instances and saved states
 * allocate memory. Instances share no data. Some functions have fewer parameters here than in FMI: the others are
 * not read, and C's calling conventions on the platforms of FMI allow more arguments.
 */

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { TIME, DT, GRAVITY, EFFORT = GRAVITY + 3, POSITION = EFFORT + NV, VELOCITY = POSITION + NQ };
enum { ACCELERATION = VELOCITY + NV, FIRST = ACCELERATION + NV /* position and velocity */ };
enum { PAYLOAD = FIRST + NQ + NV /* mass, centre */, DAMPING = PAYLOAD + (PAYLOAD_BODY < 0 ? 0 : 4) };
enum { FRICTION = DAMPING + NF, CURRENT = FRICTION + NF, WINDING = CURRENT + NM /* temperatures */ };
enum { IMU = WINDING + NH, COUNT = IMU + 6 * NI };
enum { OK = 0, ERROR = 3 };
/* Of a communication step: some minutes. From 1e10 on, rounding would hide that a length is no multiple of dt. */
#define MOST_STEPS 1e9
enum { INSTANTIATED, INITIALIZING, STEPPING, TERMINATED };

#ifdef CLOSED_LOOPS /* where functions have no result */
#define NO_NUMBER "a loop is open or opens, a joint without a drive has an effort, dt is too long, or the position " \
                  "is irregular; begin at a closed state"
#else
#define NO_NUMBER "a position, velocity, effort or parameter is too large"
#endif

typedef struct {
    double x[COUNT];
    int64_t mode, known; /* whether steps from the position `checked` are stable */
    double checked[NQ];
    double rise[NM + 1]; /* of the motors' windings above the surroundings, K */
} State;

#if FMI == 2
#define OF_VERSION(two, three) fmi2##two
#define LOG(c, message) (c)->log((c)->environment, (c)->name, ERROR, "logStatusError", "%s", message)
typedef void (*Logger)(void *environment, const char *name, int status, const char *category, const char *format, ...);
#else
#define OF_VERSION(two, three) fmi3##three
#define LOG(c, message) (c)->log((c)->environment, ERROR, "logStatusError", message)
typedef void (*Logger)(void *environment, int status, const char *category, const char *message);
#endif
#define PASTED(a, b) a##b
#define JOINED(a, b) PASTED(a, b)
#if FMI == 2 && defined FMI2_FUNCTION_PREFIX /* of units that are linked into one program */
#define API(two, three) JOINED(FMI2_FUNCTION_PREFIX, OF_VERSION(two, three))
#elif FMI == 3 && defined FMI3_FUNCTION_PREFIX
#define API(two, three) JOINED(FMI3_FUNCTION_PREFIX, OF_VERSION(two, three))
#else
#define API OF_VERSION
#endif
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef struct {
    State state;
    double w[WORKSPACE];
    Logger log;
    void *environment;
    char name[];
} Instance;

static int failed(const Instance *c, const char *format, ...)
{
    char message[300];
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    if (c->log != NULL)
        LOG(c, message);
    return ERROR;
}

EXPORT int API(Reset, Reset)(Instance *c)
{
    memset(&c->state, 0, sizeof c->state);
    memcpy(c->state.x, starts, sizeof starts);
    for (int k = 0; k < NH; k++)
        c->state.x[WINDING + k] = motor_ambient[k];
    return OK;
}

static void *instantiate(const char *name, const char *token, Logger log, void *environment)
{
    Instance *c = calloc(1, sizeof *c + strlen(name) + 1);
    if (c == NULL)
        return NULL;
    c->log = log;
    c->environment = environment;
    strcpy(c->name, name);
    API(Reset, Reset)(c);
    if (strcmp(token, TOKEN) == 0)
        return c;
    failed(c, "the token is %s, expected that of this unit, " TOKEN, token);
    free(c);
    return NULL;
}

static int change_mode(Instance *c, int from, int to, const char *function)
{
    static const char *const modes[] = {"instantiated", "initialization", "step"};
    if (c->state.mode != from)
        return failed(c, "%s is called in the wrong mode, expected %s mode", function, modes[from]);
    c->state.mode = to;
    return OK;
}

EXPORT int API(SetupExperiment, EnterInitializationMode)(Instance *c, int bounded, double tolerance, double start)
{
    (void)bounded, (void)tolerance;
    int status = change_mode(c, INSTANTIATED, FMI == 2 ? INSTANTIATED : INITIALIZING, "EnterInitializationMode");
    if (status == OK)
        c->state.x[TIME] = start;
    return status;
}

EXPORT int API(ExitInitializationMode, ExitInitializationMode)(Instance *c)
{
    for (int n = 0; quaternions[n] >= 0; n++) { /* of length 1, with the bits of `Robot.simulate` */
        double *e = c->state.x + POSITION + quaternions[n];
        double length = sqrt(e[0] * e[0] + e[1] * e[1] + e[2] * e[2] + e[3] * e[3]);
        if (!(length > 0.0 && isfinite(length)))
            return failed(c, "the initial position has a quaternion of length %g, expected one of length 1", length);
        for (int k = 0; k < 4 && fabs(length - 1.0) > 16.0 * 2.220446049250313e-16; k++)
            e[k] /= length;
    }
    return change_mode(c, INITIALIZING, STEPPING, "ExitInitializationMode");
}

EXPORT int API(Terminate, Terminate)(Instance *c) { return change_mode(c, STEPPING, TERMINATED, "Terminate"); }

#ifdef MODEL_STEP_WITH /* the model with other numbers of bodies and joints than those of the robot */
typedef struct {
    double bodies[10 * NB], joints[6 * NR];
} Numbers;

static void carry(const double *load, double *body) /* a point mass, in the link's frame; moments about the centre */
{
    const double *R = payload_rotation, *d = load + 1, m = body[0] + load[0], shared = body[0] * load[0] / m;
    double from[3], square = 0.0, *I = body + 4;
    for (int k = 0; k < 3; k++) {
        double at = payload_origin[k] + R[3 * k] * d[0] + R[3 * k + 1] * d[1] + R[3 * k + 2] * d[2];
        from[k] = at - body[1 + k];
        square += from[k] * from[k];
        body[1 + k] += load[0] / m * from[k];
    }
    body[0] = m;
    for (int j = 0; j < 3; j++)
        for (int k = j; k < 3; k++)
            *I++ += shared * ((j == k ? square : 0.0) - from[j] * from[k]);
}

static const Numbers *changed(const double *x, Numbers *to) /* NULL: none is changed */
{
    if (memcmp(x + PAYLOAD, starts + PAYLOAD, sizeof *x * (CURRENT - PAYLOAD)) == 0)
        return NULL;
    memcpy(to->bodies, bodies, sizeof bodies);
    memcpy(to->joints, rates, sizeof rates);
    if (PAYLOAD_BODY >= 0 && x[PAYLOAD] > 0.0)
        carry(x + PAYLOAD, to->bodies + 10 * PAYLOAD_BODY);
    for (int k = 0; k < NF; k++) {
        to->joints[6 * rate_of[k]] = x[DAMPING + k];
        to->joints[6 * rate_of[k] + 1] = x[FRICTION + k];
    }
    return to;
}
#else
#define MODEL_STEP_WITH(...) (void)0
#define MODEL_ACCELERATION_WITH(...) (void)0
typedef struct { double bodies[1], joints[1]; } Numbers;
static const Numbers *changed(const double *x, Numbers *to) { return (void)x, (void)to, NULL; }
#endif

static double clipped(double x, double limit) { return fmin(fmax(x, -limit), limit); }

/* Returns the acting efforts: the inputs within the limits of efforts and motors, control/plant/motors.py. */
static const double *efforts(const State *s, double *tau, double *current)
{
    const double *x = s->x;
    for (int k = 0; k < NV; k++)
        tau[k] = clipped(x[EFFORT + k], effort_limits[k]);
    for (int k = 0; k < NM; k++) {
        double *effort = tau + motor_entry[k], requested = *effort / motor_gain[k], i = clipped(requested, motor_current[k]);
        if (k < NH) {
            double left = motor_rise[k] - exp(-x[DT] / motor_time[k]) * s->rise[k];
            i = clipped(i, sqrt(fmax(left, 0.0) / (motor_heat[k] * -expm1(-x[DT] / motor_time[k]))));
        }
        double back_emf = motor_gain[k] * x[VELOCITY + motor_entry[k]], R = motor_resistance[k], U = motor_voltage[k];
        current[k] = fmin(fmax(i, (-U - back_emf) / R), (U - back_emf) / R);
        if (current[k] != requested) /* an effort within all limits keeps its bits */
            *effort = motor_gain[k] * current[k];
    }
    return tau;
}

static void heat(State *s, const double *current) /* the motors' windings in a step with these currents */
{
    memcpy(s->x + CURRENT, current, sizeof *current * NM);
    for (int k = 0; k < NH; k++) {
        double t = s->x[DT] / motor_time[k];
        s->rise[k] = exp(-t) * s->rise[k] + motor_heat[k] * -expm1(-t) * (current[k] * current[k]);
        s->x[WINDING + k] = motor_ambient[k] + s->rise[k];
    }
}

static void accelerate(Instance *c, const Numbers *with, const double *v, const double *tau, double *a)
{
    const double *q = c->state.x + POSITION, *g = c->state.x + GRAVITY;
    if (with == NULL)
        MODEL_ACCELERATION(q, v, tau, g, a, c->w);
    else
        MODEL_ACCELERATION_WITH(q, v, tau, g, with->bodies, with->joints, moves, a, c->w);
}

static double damping_rate(Instance *c, const Numbers *with) /* 1/s, the largest near rest, by power iteration */
{
    double v[NV], back[NV], a[NV], b[NV], still[NV] = {0.0}, rate = 0.0, size = 1.0;
    for (int k = 0; k < NV; k++)
        v[k] = 1.0 / (k + 1);
#ifdef CLOSED_LOOPS /* other velocities would open them: those to which the drives and the weight accelerate */
    for (int k = 0; k < NV; k++)
        a[k] = drives[k] * v[k];
    accelerate(c, with, still, a, v);
    size = 0.0;
    for (int k = 0; k < NV; k++)
        size = fmax(size, fabs(v[k])); /* NaN counts as 0: DoStep fails at irregular positions anyway */
#endif
    for (int n = 0; n < 100 && size > 0.0; n++) {
        double next = 0.0;
        for (int k = 0; k < NV; k++)
            back[k] = -(v[k] *= 1e-6 / size); /* rad/s | m/s, far below any width of friction */
        accelerate(c, with, v, still, a);
        accelerate(c, with, back, still, b);
        for (int k = 0; k < NV; k++)
            next = fmax(next, fabs(v[k] = (b[k] - a[k]) / 2.0));
        rate = n == 0 ? 0.0 : next / 1e-6;
        size = next;
    }
    return rate;
}

static int check_step(Instance *c, const Numbers *with) /* where it begins, and whenever a coordinate moved by SPACING */
{
    double *at = c->state.checked, *q = c->state.x + POSITION, moved = c->state.known ? 0.0 : INFINITY;
    for (int k = 0; k < NQ; k++)
        moved = fmax(moved, fabs(q[k] - at[k]));
    if (LARGEST_SHARE == 0.0 || moved < SPACING)
        return OK;
    memcpy(at, q, sizeof c->state.checked);
    c->state.known = true;
    double rate = damping_rate(c, with), dt = c->state.x[DT];
    if (rate * dt <= 1.01 * LARGEST_SHARE)
        return OK;
    return failed(c, "dt = %g s is unstable at t = %g s: damping or friction stops a joint within %.2g s; steps of at "
                     "most %.2g s are stable", dt, c->state.x[TIME], 1.0 / rate, 0.99 * LARGEST_SHARE / rate);
}

static int unknown(const Instance *c, uint32_t n)
{
    return failed(c, "there is no variable with the value reference %u, the largest is %d", (unsigned)n, COUNT - 1);
}

EXPORT int API(GetReal, GetFloat64)(Instance *c, const uint32_t *references, size_t count, double *values)
{
    double *x = c->state.x, tau[NV], current[NM + 1];
    bool known = false;
    for (size_t k = 0; k < count; k++) {
        uint32_t n = references[k];
        if (n >= COUNT)
            return unknown(c, n);
        bool needs = (n >= ACCELERATION && n < FIRST) || n >= IMU;
        if (needs && !known) {
            const double *q = x + POSITION, *v = x + VELOCITY;
            Numbers own;
            accelerate(c, changed(x, &own), v, efforts(&c->state, tau, current), x + ACCELERATION);
#if NI
            double force[3 * NL], turn[3 * NL], here[3] = {0.0};
            MODEL_IMU(q, v, x + ACCELERATION, here, here, x + GRAVITY, force, turn, c->w);
            for (int j = 0; j < NI; j++) {
                memcpy(x + IMU + 3 * j, force + 3 * imus[j], sizeof here);
                memcpy(x + IMU + 3 * (NI + j), turn + 3 * imus[j], sizeof here);
            }
#endif
        }
        known = known || needs;
        values[k] = x[n];
        if (!isfinite(values[k]))
            return failed(c, "'%s' is not finite at t = %g s: " NO_NUMBER, names[n], x[TIME]);
    }
    return OK;
}

EXPORT int API(SetReal, SetFloat64)(Instance *c, const uint32_t *references, size_t count, const double *values)
{
    double *x = c->state.x;
    for (size_t k = 0; k < count; k++) {
        uint32_t n = references[k];
        bool fixed = n == DT || (n >= FIRST && n < PAYLOAD), changes = n >= PAYLOAD && n < CURRENT;
        if (!fixed && !changes && !(n >= GRAVITY && n < POSITION))
            return n < COUNT ? failed(c, "'%s' cannot be set: it is no input or parameter", names[n]) : unknown(c, n);
        if (fixed && c->state.mode >= STEPPING)
            return failed(c, "'%s' can be set before the end of the initialization only", names[n]);
        bool centre = changes && n < DAMPING && n != PAYLOAD;
        double at_least = changes && !centre ? 0.0 : -INFINITY;
        if (!isfinite(values[k]) || (n == DT && values[k] <= 0.0) || values[k] < at_least)
            return failed(c, "'%s' must be %s, found %g", names[n],
                          n == DT ? "a positive number" : at_least == 0.0 ? "a number, at least 0" : "a finite number",
                          values[k]);
        if (n == DT && values[k] > LONGEST_DT)
            return failed(c, "'dt' must be at most %g s, because the back EMF of a motor brakes its joint faster than a "
                             "longer step, found %g", LONGEST_DT, values[k]);
        x[n] = values[k];
        c->state.known = c->state.known && !changes;
        if (n >= FIRST && !changes)
            x[n - FIRST + POSITION] = values[k];
    }
    return OK;
}

static int advance(Instance *c, double at, double length)
{
    double *x = c->state.x, tau[NV], current[NM + 1], next[NQ + NV], dt = x[DT], count = floor(length / dt + 0.5);
    Numbers own;
    const Numbers *with = changed(x, &own);
    if (change_mode(c, STEPPING, STEPPING, "DoStep") != OK)
        return ERROR;
    if (!isfinite(at))
        return failed(c, "the communication point is %g, expected a finite time", at);
    if (count > MOST_STEPS)
        return failed(c, "the communication step of %.17g s takes %g steps of dt = %.17g s, at most %g are allowed", length,
                      count, dt, MOST_STEPS);
    if (!(count >= 1.0 && fabs(length - count * dt) <= 1e-6 * dt))
        return failed(c, "the communication step of %.17g s is no multiple of dt = %.17g s", length, dt);
    for (double k = 1.0; k <= count; k++) {
        if (check_step(c, with) != OK)
            return ERROR;
        const double *acting = efforts(&c->state, tau, current);
        if (with == NULL)
            MODEL_STEP(x + POSITION, x + VELOCITY, acting, x + DT, x + GRAVITY, next, next + NQ, c->w);
        else
            MODEL_STEP_WITH(x + POSITION, x + VELOCITY, acting, x + DT, x + GRAVITY, with->bodies, with->joints, moves, next,
                            next + NQ, c->w);
        for (int n = 0; n < NV; n++)
            if (!isfinite(next[NQ + n]))
                return failed(c, "'%s' is not finite after t = %g s: " NO_NUMBER, names[VELOCITY + n], x[TIME]);
        memcpy(x + POSITION, next, sizeof next);
        heat(&c->state, current);
        x[TIME] = k < count ? at + k * dt : at + length;
    }
    return OK;
}

EXPORT int API(GetFMUstate, GetFMUState)(Instance *c, void **saved)
{
    *saved = *saved == NULL ? malloc(sizeof c->state) : *saved;
    if (*saved == NULL)
        return failed(c, "there is no memory for the state");
    memcpy(*saved, &c->state, sizeof c->state);
    return OK;
}

EXPORT int API(SetFMUstate, SetFMUState)(Instance *c, const void *saved)
{
    memcpy(&c->state, saved, sizeof c->state);
    return OK;
}

EXPORT int API(FreeFMUstate, FreeFMUState)(Instance *c, void **saved)
{
    (void)c;
    free(*saved);
    *saved = NULL;
    return OK;
}

EXPORT int API(SerializedFMUstateSize, SerializedFMUStateSize)(Instance *c, const void *saved, size_t *size)
{
    (void)c, (void)saved;
    *size = sizeof(State);
    return OK;
}

EXPORT int API(SerializeFMUstate, SerializeFMUState)(Instance *c, const void *saved, void *bytes, size_t size)
{
    if (size != sizeof(State))
        return failed(c, "a state has %u bytes, found %u", (unsigned)sizeof(State), (unsigned)size);
    memcpy(bytes, saved, size);
    return OK;
}

EXPORT int API(DeSerializeFMUstate, DeserializeFMUState)(Instance *c, const void *bytes, size_t size, void **saved)
{
    int status = API(GetFMUstate, GetFMUState)(c, saved);
    return status == OK ? API(SerializeFMUstate, SerializeFMUState)(c, bytes, *saved, size) : status;
}

EXPORT void API(FreeInstance, FreeInstance)(Instance *c) { free(c); }
EXPORT const char *API(GetVersion, GetVersion)(void) { return FMI == 2 ? "2.0" : "3.0"; }
EXPORT int API(SetDebugLogging, SetDebugLogging)(void) { return OK; } /* errors are always logged, and nothing else */

#define NO_VALUES(two, three) \
    EXPORT int API(two, three)(Instance *c, const void *references, size_t count) \
    { \
        (void)references; \
        return count == 0 ? OK : failed(c, "there are no variables for " #two #three); \
    }
#define REFUSED(two, three) \
    EXPORT int API(two, three)(Instance *c) { return failed(c, #two #three " is not supported"); }

#if FMI == 2
typedef struct {
    Logger log;
    void *(*allocate)(size_t, size_t);
    void (*release)(void *);
    void (*finished)(void *, int);
    void *environment;
} Callbacks;

EXPORT void *API(Instantiate, )(const char *name, int kind, const char *token, const char *at, const Callbacks *with)
{
    (void)at;
    return kind == 1 ? instantiate(name, token, with->log, with->environment) : NULL;
}
EXPORT int API(EnterInitializationMode, )(Instance *c)
{
    return change_mode(c, INSTANTIATED, INITIALIZING, "EnterInitializationMode");
}
EXPORT int API(DoStep, )(Instance *c, double at, double length) { return advance(c, at, length); }
EXPORT const char *API(GetTypesPlatform, )(void) { return "default"; }
NO_VALUES(GetInteger, ) NO_VALUES(SetInteger, ) NO_VALUES(GetBoolean, ) NO_VALUES(SetBoolean, )
NO_VALUES(GetString, ) NO_VALUES(SetString, )
REFUSED(GetDirectionalDerivative, ) REFUSED(SetRealInputDerivatives, ) REFUSED(GetRealOutputDerivatives, )
REFUSED(CancelStep, ) REFUSED(GetStatus, ) REFUSED(GetRealStatus, ) REFUSED(GetIntegerStatus, )
REFUSED(GetBooleanStatus, ) REFUSED(GetStringStatus, )
#else
EXPORT void *API(, InstantiateCoSimulation)(const char *name, const char *token, const char *at, bool shown, bool logs,
                                            bool events, bool returns, const uint32_t *between, size_t count,
                                            void *environment, Logger log)
{
    (void)at, (void)shown, (void)logs, (void)events, (void)returns, (void)between, (void)count;
    return instantiate(name, token, log, environment);
}
EXPORT void *API(, InstantiateModelExchange)(void) { return NULL; }
EXPORT void *API(, InstantiateScheduledExecution)(void) { return NULL; }
EXPORT int API(, DoStep)(Instance *c, double at, double length, bool final, bool *event, bool *ends, bool *early,
                         double *last)
{
    int status = advance(c, at, length);
    (void)final;
    *event = *ends = *early = false;
    *last = c->state.x[TIME];
    return status;
}
NO_VALUES(, GetFloat32) NO_VALUES(, SetFloat32) NO_VALUES(, GetInt8) NO_VALUES(, SetInt8) NO_VALUES(, GetUInt8)
NO_VALUES(, SetUInt8) NO_VALUES(, GetInt16) NO_VALUES(, SetInt16) NO_VALUES(, GetUInt16) NO_VALUES(, SetUInt16)
NO_VALUES(, GetInt32) NO_VALUES(, SetInt32) NO_VALUES(, GetUInt32) NO_VALUES(, SetUInt32) NO_VALUES(, GetInt64)
NO_VALUES(, SetInt64) NO_VALUES(, GetUInt64) NO_VALUES(, SetUInt64) NO_VALUES(, GetString) NO_VALUES(, SetString)
NO_VALUES(, GetBoolean) NO_VALUES(, SetBoolean) NO_VALUES(, GetBinary) NO_VALUES(, SetBinary)
NO_VALUES(, GetClock) NO_VALUES(, SetClock)
REFUSED(, EnterEventMode) REFUSED(, GetNumberOfVariableDependencies) REFUSED(, GetVariableDependencies)
REFUSED(, GetDirectionalDerivative) REFUSED(, GetAdjointDerivative) REFUSED(, EnterConfigurationMode)
REFUSED(, ExitConfigurationMode) REFUSED(, GetIntervalDecimal) REFUSED(, GetIntervalFraction)
REFUSED(, GetShiftDecimal) REFUSED(, GetShiftFraction) REFUSED(, SetIntervalDecimal) REFUSED(, SetIntervalFraction)
REFUSED(, SetShiftDecimal) REFUSED(, SetShiftFraction) REFUSED(, EvaluateDiscreteStates)
REFUSED(, UpdateDiscreteStates) REFUSED(, EnterContinuousTimeMode) REFUSED(, CompletedIntegratorStep)
REFUSED(, SetTime) REFUSED(, SetContinuousStates) REFUSED(, GetContinuousStateDerivatives)
REFUSED(, GetEventIndicators) REFUSED(, GetContinuousStates) REFUSED(, GetNominalsOfContinuousStates)
REFUSED(, GetNumberOfEventIndicators) REFUSED(, GetNumberOfContinuousStates) REFUSED(, EnterStepMode)
REFUSED(, GetOutputDerivatives) REFUSED(, ActivateModelPartition)
#endif
