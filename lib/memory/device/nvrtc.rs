//! The run-time compiler of CUDA. In: a kernel's source, an architecture. Out: machine code. Guarantee: the library is
//! loaded by the path that the user gave or by its usual names; a missing one is an error that says what was tried.

use super::error::DeviceError;
use crate::base::env;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::sync::OnceLock;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Names tried when no path is given: that of the newest CUDA that the kernels are tested with first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Options of every compilation.
pub(super) const OPTIONS: [&str; 3] = ["--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v"];

type Code = c_int;
type Program = *mut std::ffi::c_void;
type CreateProgram = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Code;
type CompileProgram = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> Code;
type GetBytes = unsafe extern "C" fn(Program, *mut c_char) -> Code;
type DestroyProgram = unsafe extern "C" fn(*mut Program) -> Code;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code;
type ErrorString = unsafe extern "C" fn(Code) -> *const c_char;

/// The loaded compiler.
#[derive(Debug)]
pub struct Compiler {
    create: CreateProgram,
    compile: CompileProgram,
    code_size: GetSize,
    code: GetBytes,
    log_size: GetSize,
    log: GetBytes,
    destroy: DestroyProgram,
    error: ErrorString,
    version: (i32, i32),
    _library: Library,
    _builtins: Option<Library>,
}

/// The compiler opens this library by its name alone; a loaded one of that name is taken, wherever it came from.
fn builtins(compiler: &str, major: i32, minor: i32) -> Option<Library> {
    let beside = Path::new(compiler).parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let path = beside.join(format!("libnvrtc-builtins.so.{major}.{minor}"));
    // SAFETY: a library of data that belongs to the compiler, from the folder that the user chose.
    unsafe { Library::open(Some(path.as_os_str()), RTLD_NOW | RTLD_LOCAL) }.ok()
}

/// A kernel's machine code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// For the driver.
    pub code: Vec<u8>,
    /// What the compiler said: registers, spills.
    pub log: String,
}

impl Compiler {
    /// Loads the compiler, once per process.
    pub fn load() -> Result<&'static Self, DeviceError> {
        static COMPILER: OnceLock<Result<Compiler, DeviceError>> = OnceLock::new();
        COMPILER.get_or_init(Self::load_now).as_ref().map_err(Clone::clone)
    }

    fn load_now() -> Result<Self, DeviceError> {
        let given = env::text(env::NVRTC);
        let names = given.as_deref().map_or_else(|| NAMES.to_vec(), |path| vec![path]);
        let found = names.iter().find_map(|name| {
            // SAFETY: runs the initialisers of the library, which the user or the system's search path chose.
            unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_LOCAL) }.ok().map(|library| (library, *name))
        });
        let Some((library, path)) = found else {
            return Err(DeviceError::NoCompiler { tried: names.join(", ") });
        };
        Self::over(library, path)
    }

    fn over(library: Library, path: &str) -> Result<Self, DeviceError> {
        fn symbol<T: Copy>(library: &Library, path: &str, symbol: &'static str) -> Result<T, DeviceError> {
            // SAFETY: the caller names a function of the library together with its type, as its documentation states.
            let found = unsafe { library.get::<T>(symbol.as_bytes()) };
            found.map(|found| *found).map_err(|_| DeviceError::OldCompiler { path: path.to_string(), symbol })
        }
        let version: Version = symbol(&library, path, "nvrtcVersion")?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to live integers.
        let _ = unsafe { version(&mut major, &mut minor) };
        Ok(Self {
            _builtins: builtins(path, major, minor),
            create: symbol(&library, path, "nvrtcCreateProgram")?,
            compile: symbol(&library, path, "nvrtcCompileProgram")?,
            code_size: symbol(&library, path, "nvrtcGetCUBINSize")?,
            code: symbol(&library, path, "nvrtcGetCUBIN")?,
            log_size: symbol(&library, path, "nvrtcGetProgramLogSize")?,
            log: symbol(&library, path, "nvrtcGetProgramLog")?,
            destroy: symbol(&library, path, "nvrtcDestroyProgram")?,
            error: symbol(&library, path, "nvrtcGetErrorString")?,
            version: (major, minor),
            _library: library,
        })
    }

    /// Its version, such as `13.0`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// Compiles kernel file `kernel` (such as `pack.cu`), with a macro (such as `ELEMENT=2`) where it wants one, for
    /// `architecture` (such as `sm_90`).
    pub fn compile(&self, kernel: &str, define: Option<&str>, architecture: &str) -> Result<Compiled, DeviceError> {
        let failed = |log: String| DeviceError::Compile {
            kernel: kernel.to_string(),
            architecture: architecture.to_string(),
            version: self.version(),
            log,
        };
        let Some((_, source)) = FILES.iter().find(|(name, _)| *name == kernel) else {
            return Err(failed("there is no such file among the kernels".to_string()));
        };
        let text = |text: &str| CString::new(text).map_err(|_| failed("it contains a zero byte".to_string()));
        let headers: Vec<&(&str, &str)> = FILES.iter().filter(|(name, _)| !name.ends_with(".cu")).collect();
        let names = headers.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>, _>>()?;
        let texts = headers.iter().map(|(_, source)| text(source)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (name_pointers, text_pointers) = (pointers(&names), pointers(&texts));
        let (source, name) = (text(source)?, text(kernel)?);
        let mut program = std::ptr::null_mut();
        // SAFETY: all texts end with a zero and outlive the call, which copies them; both lists have the stated length.
        let created = unsafe {
            (self.create)(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        if created != 0 {
            return Err(failed(self.words(created)));
        }
        let mut program = Owned { compiler: self, program };
        let architecture = text(&format!("--gpu-architecture={architecture}"))?;
        let mut options = OPTIONS.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        options.push(architecture);
        if let Some(define) = define {
            options.push(text(&format!("--define-macro={define}"))?);
        }
        let options = pointers(&options);
        // SAFETY: the program is live; the options end with a zero and outlive the call.
        let compiled = unsafe { (self.compile)(program.program, options.len() as c_int, options.as_ptr()) };
        let log = String::from_utf8_lossy(&program.bytes(self.log_size, self.log)).trim_end_matches('\0').to_string();
        if compiled != 0 {
            return Err(failed(format!("{}: {}", self.words(compiled), log.trim())));
        }
        let code = program.bytes(self.code_size, self.code);
        if code.is_empty() {
            return Err(failed("the compiler made no machine code".to_string()));
        }
        Ok(Compiled { code, log })
    }

    fn words(&self, code: Code) -> String {
        // SAFETY: takes any code and returns a static text.
        let text = unsafe { (self.error)(code) };
        match text.is_null() {
            true => format!("code {code}"),
            // SAFETY: a static text that ends with a zero.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        }
    }
}

/// A program that is destroyed when dropped.
struct Owned<'a> {
    compiler: &'a Compiler,
    program: Program,
}

impl Owned<'_> {
    fn bytes(&mut self, size: GetSize, get: GetBytes) -> Vec<u8> {
        let mut length = 0;
        // SAFETY: the program is live, the pointer is to a live integer.
        if unsafe { size(self.program, &mut length) } != 0 {
            return Vec::new();
        }
        let mut bytes = vec![0u8; length];
        // SAFETY: the room is as long as the compiler asked for.
        if unsafe { get(self.program, bytes.as_mut_ptr().cast()) } != 0 {
            bytes.clear();
        }
        bytes
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `compile` and destroyed once.
        let _ = unsafe { (self.compiler.destroy)(&mut self.program) };
    }
}
